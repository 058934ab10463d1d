//! The client that sends a request, and its role.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use duly::Filter;
use duly::admin::Role;

use super::problem::{Problem, Result};

/// The client that sends a request. A service around the router may put its own identity into the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The name of the token, `local` for a client on this machine, or the name that the service around has set.
    pub name: String,
    /// The role of the client.
    pub role: Role,
}

impl Identity {
    /// Returns an identity with this name and role.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::admin::Role;
    /// use duly_http::Identity;
    ///
    /// /// The service around the router has checked who sends the request.
    /// fn identify(request: &mut axum::extract::Request, user: &str) {
    ///     request.extensions_mut().insert(Identity::new(user, Role::Viewer));
    /// }
    /// ```
    #[must_use]
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Identity { name: name.into(), role }
    }

    /// Returns a 403 unless the client has at least this role.
    pub(crate) fn require(&self, role: Role) -> Result<()> {
        if self.role >= role {
            return Ok(());
        }
        let detail = format!("{} has the role {}; this needs a token with the role {role}", self.name, self.role);
        Err(Problem::forbidden(detail))
    }

    /// Returns a 403 for a filter on args unless the client may see args.
    pub(crate) fn require_for_filter(&self, filter: &Filter) -> Result<()> {
        match filter.uses_args() {
            true => self.require(Role::Operator),
            false => Ok(()),
        }
    }

    /// Returns the client name of the remote nodes that this client may use; `None` for all of them.
    pub(crate) fn node_scope(&self) -> Option<&str> {
        (self.role < Role::Operator).then_some(&*self.name)
    }

    /// Returns whether the client may see the args of jobs.
    pub(crate) fn can_see_args(&self) -> bool {
        self.role >= Role::Operator
    }
}

/// Defines an extractor per role. A handler that takes one requires the role before its body is read.
macro_rules! role_extractors {
    ($($role:ident)*) => { $(
        pub(crate) struct $role(#[allow(dead_code, reason = "not every handler needs the identity")] pub(crate) Identity);

        impl<S: Send + Sync> FromRequestParts<S> for $role {
            type Rejection = Response;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
                let identity = Identity::from_request_parts(parts, state).await?;
                identity.require(Role::$role).map_err(IntoResponse::into_response)?;
                Ok($role(identity))
            }
        }
    )* };
}

role_extractors! { Pusher Operator Admin }

/// The `auth` middleware puts the identity into the request: no handler runs for an unknown client.
impl<S: Send + Sync> FromRequestParts<S> for Identity {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let identity = parts.extensions.get::<Identity>().cloned();
        identity.ok_or_else(|| Problem::unauthorized("sign in first").into_response())
    }
}
