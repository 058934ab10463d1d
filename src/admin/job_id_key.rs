//! Ids of jobs that only clients of one store can derive. Pure.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::JobId;
use crate::store::to_hex;

/// Derives ids of jobs from names, with the secret of a store, from [`Tokens::job_id_key`](crate::admin::Tokens::job_id_key).
///
/// Without the secret, an id cannot be computed in advance. A client therefore cannot push a job under the id that a
/// later push of another client will have. Redacted in `Debug`.
///
/// # Examples
///
/// ```
/// # use duly::Duly;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let key = duly.tokens().job_id_key().await?;
/// assert_eq!(key.derive("ci/order-7"), key.derive("ci/order-7"));
/// assert_ne!(key.derive("ci/order-7"), duly::JobId::from_name("ci/order-7"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JobIdKey(String);

impl JobIdKey {
    pub(crate) fn new(secret: String) -> Self {
        JobIdKey(secret)
    }

    /// Returns the id of the job with this name. The same name always gives the same id.
    #[must_use]
    pub fn derive(&self, name: &str) -> JobId {
        let Ok(mac) = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()) else {
            // HMAC accepts keys of every length.
            return JobId::from_name(name);
        };
        JobId::from_name(&to_hex(&mac.chain_update(name).finalize().into_bytes()))
    }
}

impl fmt::Debug for JobIdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobIdKey(..)")
    }
}
