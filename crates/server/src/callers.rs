//! Extractors of the caller. A handler requires a scope by the type that it extracts; it never sees credentials.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::access::Caller;
use crate::error::{ApiError, Result};
use crate::scope::Scope;
use crate::service::Service;

macro_rules! callers {
    ($($(#[$doc:meta])* $name:ident needs $scope:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(pub(crate) Caller);

        impl FromRequestParts<Arc<Service>> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self> {
                Ok(Self(service.auth.caller(parts).await?.need($scope)?))
            }
        }
    )*};
}

callers! {
    /// A caller with valid credentials, whatever their scopes.
    Known needs None;
    /// A caller that may publish.
    Publisher needs Some(Scope::Publish);
    /// A caller that may claim events and report on them.
    Worker needs Some(Scope::Consume);
    /// A caller that may read events and lists.
    Reader needs Some(Scope::Read);
    /// A caller that may manage queues and dead letters.
    Manager needs Some(Scope::Manage);
    /// A caller that may do everything.
    Admin needs Some(Scope::Admin);
}
