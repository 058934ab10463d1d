//! Who sends a request, and what they may do.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use crate::admin::token::Role;
use crate::job::filter::Filter;

/// Who sends a request. A service around the router may put its own into the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Who {
    /// The name of the token, `local` on this machine, or what the service around has said.
    pub name: String,
    /// What they may do.
    pub role: Role,
}

impl Who {
    /// Somebody of this name with this role.
    #[must_use]
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Who { name: name.into(), role }
    }

    /// Refuses whoever may do less than this.
    pub(crate) fn may(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        let detail = format!("{} is a {}; this needs a token with the role {role}", self.name, self.role);
        Err(Problem::forbidden(detail))
    }

    /// Refuses a filter by what jobs carry to those who do not see that.
    pub(crate) fn may_ask(&self, filter: &Filter) -> Result<(), Problem> {
        match filter.looks_into_args() {
            true => self.may(Role::Operator),
            false => Ok(()),
        }
    }

    /// In whose name workers must have joined that they may speak for; `None`: anybody's.
    pub(crate) fn speaks_for(&self) -> Option<&str> {
        (self.role < Role::Operator).then_some(&*self.name)
    }

    /// Whether they see what jobs carry.
    pub(crate) fn sees_args(&self) -> bool {
        self.role >= Role::Operator
    }
}

/// Somebody who may at least do so much: a route says whom it is for by what it takes, before its body is read.
macro_rules! at_least {
    ($($role:ident)*) => { $(
        pub(crate) struct $role(#[allow(dead_code, reason = "not every route asks who it is")] pub(crate) Who);

        impl<S: Send + Sync> FromRequestParts<S> for $role {
            type Rejection = Response;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
                let who = Who::from_request_parts(parts, state).await?;
                who.may(Role::$role).map_err(IntoResponse::into_response)?;
                Ok($role(who))
            }
        }
    )* };
}

at_least! { Pusher Operator Admin }

/// The gate has put it there: nothing behind it runs for somebody unknown.
impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Who>().cloned().ok_or_else(|| Problem::unauthorized("sign in first").into_response())
    }
}
