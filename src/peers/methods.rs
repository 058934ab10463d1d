//! The methods that this process answers: typed at the edge, erased inside, each with its limits.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// How many calls of a method run at once, unless it says otherwise.
pub const DEFAULT_METHOD_CONCURRENCY: usize = 64;
/// Most methods of one process.
pub(crate) const METHODS_MAX: usize = 1_024;

type MethodFuture = Pin<Box<dyn Future<Output = Result<Box<RawValue>, String>> + Send>>;
type MethodFn = Arc<dyn Fn(&RawValue, CallContext) -> MethodFuture + Send + Sync>;

/// A method and its limits.
#[derive(Clone)]
pub(crate) struct Method {
    run: MethodFn,
    /// Where it runs: the runtime of who registered it.
    runtime: Handle,
    permits: Arc<Semaphore>,
    rate: Option<Arc<Mutex<CallRate>>>,
    args_bytes_max: usize,
}

/// What a method is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodLimits {
    pub(crate) concurrency: usize,
    pub(crate) rate: Option<(u32, Duration)>,
    pub(crate) args_bytes_max: usize,
}

/// So many calls in so long; unused ones are saved up to one measure.
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
        let run = move |args: &RawValue, asked: CallContext| -> MethodFuture {
            // Read where the method runs: a type that is slow to read must not hold up the hall.
            let (handler, args) = (handler.clone(), args.to_owned());
            Box::pin(async move {
                let args = serde_json::from_str::<A>(args.get());
                let args =
                    args.map_err(|why| format!("the args do not decode as {}: {why}", std::any::type_name::<A>()))?;
                let value = handler(args, asked)
                    .await
                    .map_err(|error| crate::worker::handler::format_error_chain(&error.into()))?;
                serde_json::value::to_raw_value(&value)
                    .map_err(|why| format!("the value cannot be written as JSON: {why}"))
            })
        };
        let rate = limits.rate.map(|(calls, per)| {
            let calls = f64::from(calls);
            Arc::new(Mutex::new(CallRate { calls, per, available: calls, refilled_at: clock::monotonic_now() }))
        });
        let room = Arc::new(Semaphore::new(limits.concurrency));
        Method { run: Arc::new(run), runtime, permits: room, rate, args_bytes_max: limits.args_bytes_max }
    }

    /// Leave to run once, unless a limit is in the way.
    pub(crate) fn admit(&self, args: &RawValue) -> Result<OwnedSemaphorePermit, String> {
        if args.get().len() > self.args_bytes_max {
            return Err(format!("args of {} bytes; it takes at most {}", args.get().len(), self.args_bytes_max));
        }
        let slow_down = |rate: &Arc<Mutex<CallRate>>| !rate.lock().unwrap_or_else(PoisonError::into_inner).try_take();
        let room = self.permits.clone().try_acquire_owned();
        let room = room.map_err(|_| "as many calls as may run at once are under way".to_owned())?;
        if self.rate.as_ref().is_some_and(slow_down) {
            return Err("it is called more often than it may be".to_owned());
        }
        Ok(room)
    }

    /// Runs it where it was registered, for as long as somebody waits for the answer: then there is none.
    ///
    /// Its room is taken until it has ended, also if nobody waits any more: one that does not yield goes on all the same.
    pub(crate) async fn run(
        &self,
        args: &RawValue,
        asked: CallContext,
        within: Duration,
        room: OwnedSemaphorePermit,
    ) -> Option<Result<Box<RawValue>, String>> {
        // Also the call itself may panic, before it gives a future.
        let run = match std::panic::catch_unwind(AssertUnwindSafe(|| (self.run)(args, asked))) {
            Ok(run) => AssertUnwindSafe(run).catch_unwind(),
            Err(panic) => return Some(Err(format!("panicked: {}", crate::worker::attempt::panic_message(&*panic)))),
        };
        let mut task = self.runtime.spawn(async move {
            let answer = run.await;
            drop(room);
            answer
        });
        match tokio::time::timeout(within, &mut task).await {
            Ok(Ok(Ok(answer))) => Some(answer),
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a method, in place of one with the same name. Answers false if there are too many.
    pub(crate) fn add(&self, name: String, method: Method) -> bool {
        let mut all = self.all();
        let room = all.len() < METHODS_MAX || all.contains_key(&name);
        if room {
            all.insert(name, method);
        }
        room
    }

    pub(crate) fn remove(&self, name: &str) -> bool {
        self.all().remove(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Method> {
        self.all().get(name).cloned()
    }

    /// Their names, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.all().keys().cloned().collect();
        names.sort_unstable();
        names
    }
}
