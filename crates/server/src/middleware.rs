//! What is done around every request: a span that continues the caller's trace, metrics, refusal of unknown query
//! parameters, a share of the memory for bodies, and an answer in case of a panic. One middleware does it all, since
//! every layer of the router costs a request about as much as its handler.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::{HeaderValue, header};
use tracing::Instrument;

use crate::body_budget::{Bodies, Share};
use crate::error::{ApiError, Code};
use crate::observe::Seen;
use crate::service::Service;
use crate::unknown_fields::Parameters;

/// The state of the middleware.
#[derive(Debug)]
pub(crate) struct Around {
    parameters: Parameters,
    bodies: Arc<Bodies>,
}

impl Around {
    pub(crate) fn new(service: &Service) -> Self {
        Self { parameters: crate::openapi::parameters(), bodies: Arc::clone(&service.bodies) }
    }

    /// Checks and runs a request; a panic of its handler becomes a 500.
    async fn answer(&self, mut request: Request, route: &str, next: Next) -> Response {
        if let Some(query) = request.uri().query()
            && let Err(error) = self.parameters.check(request.method(), route, query)
        {
            return error.into_response();
        }
        // Released with the answer, or by its drop when the caller is gone and the request is aborted.
        let share = Arc::new(Share::new(&self.bodies));
        request.extensions_mut().insert(Arc::clone(&share));
        let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        share.release();
        answer.unwrap_or_else(panicked)
    }
}

pub(crate) async fn around(State(around): State<Arc<Around>>, request: Request, next: Next) -> Response {
    let seen = Seen::new(&request);
    let mut response = around.answer(request, &seen.route, next).instrument(seen.span.clone()).await;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    seen.answered(&response);
    response
}

fn panicked(reason: Box<dyn Any + Send>) -> Response {
    let text = reason.downcast_ref::<&str>().copied().or_else(|| reason.downcast_ref::<String>().map(String::as_str));
    tracing::error!(reason = text.unwrap_or("unknown"), "a handler panicked; the request was answered with 500");
    ApiError::new(Code::Internal, "the server failed; its log says why").into_response()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_answer_and_every_answer_is_taken_as_it_says() {
        let bodies = Arc::new(Bodies::new(1_000));
        let held = Arc::new(Around { parameters: Parameters::default(), bodies: Arc::clone(&bodies) });
        let budget = Arc::clone(&bodies);
        let fail = async move |request: Request| {
            let share = request.extensions().get::<Arc<Share>>().expect("a share");
            if share.take(1_000, budget.most()) {
                panic!("by design");
            }
            http::StatusCode::OK
        };
        let router = Router::new().route("/panic", get(fail)).layer(from_fn_with_state(held, around));
        for (path, status) in [("/panic", 500), ("/panic", 500), ("/nothing", 404)] {
            let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
            let answer = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status(), status, "the memory that the first took was released");
            assert_eq!(answer.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
