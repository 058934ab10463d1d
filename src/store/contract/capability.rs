//! The macro around each trait of the contract: it finds the capability, traces the call and measures it.

use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};
use crate::metrics;

/// Defines the trait of a capability: `pub trait NAME(FIELD: "DESCRIPTION") { ... }`. `FIELD` is its field in
/// [`Capabilities`](super::Capabilities), and the description completes the sentence "this store does not support".
///
/// Also implements the trait for `dyn Store`, which finds the capability and traces the call, and in tests for
/// `FaultyStore`, which injects faults. A new method therefore needs no forwarding anywhere.
macro_rules! capability {
    (
        $(#[$trait_doc:meta])*
        pub trait $trait:ident($field:ident: $description:literal) {
            $(
                $(#[$doc:meta])*
                async fn $operation:ident(&self $(, $arg:ident: $ty:ty)* $(,)?) -> $out:ty;
            )*
        }
    ) => {
        /// The description of this capability in messages.
        pub(crate) const CAPABILITY: &str = $description;

        $(#[$trait_doc])*
        #[async_trait::async_trait]
        pub trait $trait: $crate::store::contract::sealed::Sealed + Send + Sync {
            $(
                $(#[$doc])*
                async fn $operation(&self, $($arg: $ty),*) -> $out;
            )*
        }

        #[async_trait::async_trait]
        impl $trait for dyn $crate::store::Store + '_ {
            $(
                async fn $operation(&self, $($arg: $ty),*) -> $out {
                    let call = $crate::store::contract::capability::TracedCall::start(stringify!($operation));
                    let capability = self.capabilities().$field;
                    let reply = match capability {
                        Some(store) => tracing::Instrument::instrument(store.$operation($($arg),*), call.span()).await,
                        None => Err($crate::store::contract::capability::unsupported(self, CAPABILITY)),
                    };
                    call.finish(&reply);
                    reply
                }
            )*
        }

        #[cfg(test)]
        #[async_trait::async_trait]
        impl $trait for $crate::store::faulty::FaultyStore {
            $(
                async fn $operation(&self, $($arg: $ty),*) -> $out {
                    self.call_with_fault(stringify!($operation), self.inner.$operation($($arg),*)).await
                }
            )*
        }
    };
}

pub(super) use capability;

/// A call through `dyn Store`, with its span, its duration and, if it fails, its error code.
pub(super) struct TracedCall {
    operation: &'static str,
    started: Instant,
}

impl TracedCall {
    pub(super) fn start(operation: &'static str) -> Self {
        TracedCall { operation, started: clock::monotonic_now() }
    }

    pub(super) fn span(&self) -> tracing::Span {
        tracing::trace_span!("duly.store", op = self.operation, otel.kind = "client")
    }

    pub(super) fn finish<T>(&self, reply: &Result<T>) {
        let code = reply.as_ref().err().map(Error::code);
        metrics::record_store_request(self.operation, clock::monotonic_now() - self.started, code);
    }
}

/// Returns the error of a call to a capability that the store lacks.
pub(crate) fn unsupported(store: &dyn super::Store, capability: &'static str) -> Error {
    Error::Unsupported { store: store.name(), capability, advice: store.advice(capability) }
}

#[cfg(test)]
mod tests {
    use crate::Duly;
    use crate::store::faulty::{FaultyStore, InjectedFault};
    use crate::store::{HealthStore, JobStore, ScanStore, Store};

    #[tokio::test]
    async fn missing_capability_is_refused_by_name() {
        let store = Duly::open(":memory:").await.expect("opens").store();
        let error = store.scan("default", None).await.expect_err("a file copies itself");
        assert_eq!(error.code(), "unsupported");
        assert_eq!(error.to_string(), "SQLite stores do not support job-by-job export; back up the file instead");
    }

    #[tokio::test]
    async fn faulty_store_has_the_capabilities_of_the_inner_one() {
        let faulty = FaultyStore::new(Duly::open(":memory:").await.expect("opens").store());
        let capabilities = faulty.capabilities();
        assert!(capabilities.jobs.is_some() && capabilities.snapshot.is_some() && capabilities.scan.is_none());
        faulty.inject("counts", InjectedFault::Refuse, 1);
        assert_eq!(faulty.counts().await.expect_err("refused").code(), "store");
        assert!(faulty.counts().await.is_ok() && faulty.health().await.is_ok());
        assert_eq!((faulty.call_count("counts"), faulty.call_count("health")), (2, 1));
    }
}
