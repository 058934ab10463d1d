//! The methods that this process offers: typed at the interface, type-erased inside, each with its limits.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::clock;
use crate::error::BoxError;
use crate::peers::call::CallContext;
use crate::sync::LockExt;

/// Default number of concurrent calls of a method.
pub const DEFAULT_METHOD_CONCURRENCY: usize = 64;
/// Most methods of one process.
pub(crate) const METHODS_MAX: usize = 1_024;

type MethodFuture = Pin<Box<dyn Future<Output = Result<Box<RawValue>, String>> + Send>>;
type MethodFn = Arc<dyn Fn(&RawValue, CallContext) -> MethodFuture + Send + Sync>;

/// A method and its limits.
#[derive(Clone)]
pub(crate) struct Method {
    run: MethodFn,
    /// The runtime from which it was registered, on which it runs.
    runtime: Handle,
    permits: Arc<Semaphore>,
    rate: Option<Arc<Mutex<CallRate>>>,
    args_bytes_max: usize,
}

/// The limits of a method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodLimits {
    pub(crate) concurrency: usize,
    pub(crate) rate: Option<(u32, Duration)>,
    pub(crate) args_bytes_max: usize,
}

/// A token bucket: `calls` per `per`, with unused calls saved up to `calls`.
struct CallRate {
    calls: f64,
    per: Duration,
    available: f64,
    refilled_at: Instant,
}

impl CallRate {
    fn try_take(&mut self) -> bool {
        let now = clock::monotonic_now();
        let earned = self.calls * (now - self.refilled_at).as_secs_f64() / self.per.as_secs_f64();
        self.available = (self.available + earned).min(self.calls);
        self.refilled_at = now;
        if self.available < 1.0 {
            return false;
        }
        self.available -= 1.0;
        true
    }
}

impl Method {
    pub(crate) fn new<A, F, Fut, R, E>(handler: F, limits: MethodLimits, runtime: Handle) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, CallContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize,
        E: Into<BoxError>,
    {
        let handler = Arc::new(handler);
        let run = move |args: &RawValue, context: CallContext| -> MethodFuture {
            // Decoded on the method's runtime: a type that is slow to decode must not block the peer thread.
            let (handler, args) = (handler.clone(), args.to_owned());
            Box::pin(async move {
                let args = serde_json::from_str::<A>(args.get());
                let args =
                    args.map_err(|error| format!("the args do not decode as {}: {error}", std::any::type_name::<A>()))?;
                let value = handler(args, context)
                    .await
                    .map_err(|error| crate::worker::handler::format_error_chain(&error.into()))?;
                serde_json::value::to_raw_value(&value)
                    .map_err(|error| format!("the value cannot be written as JSON: {error}"))
            })
        };
        let rate = limits.rate.map(|(calls, per)| {
            let calls = f64::from(calls);
            Arc::new(Mutex::new(CallRate { calls, per, available: calls, refilled_at: clock::monotonic_now() }))
        });
        let permits = Arc::new(Semaphore::new(limits.concurrency));
        Method { run: Arc::new(run), runtime, permits, rate, args_bytes_max: limits.args_bytes_max }
    }

    /// Returns a permit to run once, or the limit that prevents it.
    pub(crate) fn admit(&self, args: &RawValue) -> Result<OwnedSemaphorePermit, String> {
        if args.get().len() > self.args_bytes_max {
            return Err(format!("args have {} bytes; at most {} are allowed", args.get().len(), self.args_bytes_max));
        }
        let is_over_rate = |rate: &Arc<Mutex<CallRate>>| !rate.lock_unpoisoned().try_take();
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| "the maximum number of concurrent calls is running".to_owned())?;
        if self.rate.as_ref().is_some_and(is_over_rate) {
            return Err("its rate limit is exceeded".to_owned());
        }
        Ok(permit)
    }

    /// Runs the method on its runtime; returns `None` if it takes longer than `timeout`.
    ///
    /// The permit is held until the method ends: a method that does not yield keeps running after the timeout.
    pub(crate) async fn run(
        &self,
        args: &RawValue,
        context: CallContext,
        timeout: Duration,
        permit: OwnedSemaphorePermit,
    ) -> Option<Result<Box<RawValue>, String>> {
        // The call itself may panic too, before it returns a future.
        let run = match std::panic::catch_unwind(AssertUnwindSafe(|| (self.run)(args, context))) {
            Ok(run) => AssertUnwindSafe(run).catch_unwind(),
            Err(panic) => return Some(Err(format!("panicked: {}", crate::worker::attempt::panic_message(&*panic)))),
        };
        let mut task = self.runtime.spawn(async move {
            let result = run.await;
            drop(permit);
            result
        });
        match tokio::time::timeout(timeout, &mut task).await {
            Ok(Ok(Ok(result))) => Some(result),
            Ok(Ok(Err(panic))) => Some(Err(format!("panicked: {}", crate::worker::attempt::panic_message(&*panic)))),
            Ok(Err(_)) => Some(Err("the node is stopping".to_owned())),
            Err(_) => {
                task.abort();
                None
            }
        }
    }
}

/// All methods of this process, by name.
#[derive(Default)]
pub(crate) struct MethodRegistry(Mutex<HashMap<String, Method>>);

impl MethodRegistry {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Method>> {
        self.0.lock_unpoisoned()
    }

    /// Adds a method, replacing one with the same name. Returns false if there are too many.
    pub(crate) fn add(&self, name: String, method: Method) -> bool {
        let mut all = self.all();
        let has_room = all.len() < METHODS_MAX || all.contains_key(&name);
        if has_room {
            all.insert(name, method);
        }
        has_room
    }

    pub(crate) fn remove(&self, name: &str) -> bool {
        self.all().remove(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Method> {
        self.all().get(name).cloned()
    }

    /// Returns the names, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.all().keys().cloned().collect();
        names.sort_unstable();
        names
    }
}
