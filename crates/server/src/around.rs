//! What is done around every request: its span continues the caller's trace; it is counted and timed; parameters that its
//! operation does not know are refused; its body has a share of the memory for bodies until it is answered; a panic becomes
//! an answer. In one step, since every layer of the router costs a request about as much as its handler.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::{HeaderValue, header};
use tracing::Instrument;

use crate::bodies::{Bodies, Share};
use crate::error::{ApiError, Code};
use crate::observe::Seen;
use crate::service::Service;
use crate::unknown::Parameters;

/// What it takes.
#[derive(Debug)]
pub(crate) struct Around {
    parameters: Parameters,
    bodies: Arc<Bodies>,
}

impl Around {
    pub(crate) fn new(service: &Service) -> Self {
        Self { parameters: crate::openapi::parameters(), bodies: Arc::clone(&service.bodies) }
    }

    /// Runs a request to its answer.
    async fn answer(&self, mut request: Request, route: &str, next: Next) -> Response {
        if let Some(query) = request.uri().query()
            && let Err(error) = self.parameters.check(request.method(), route, query)
        {
            return error.into_response();
        }
        // Given back once there is an answer, or nobody waits for one any more.
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
    tracing::error!(reason = text.unwrap_or("unknown"), "a handler panicked");
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
        let room = Arc::clone(&bodies);
        let fail = async move |request: Request| {
            let share = request.extensions().get::<Arc<Share>>().expect("a share");
            if share.take(1_000, room.most()) {
                panic!("by design");
            }
            http::StatusCode::OK
        };
        let router = Router::new().route("/panic", get(fail)).layer(from_fn_with_state(held, around));
        for (path, status) in [("/panic", 500), ("/panic", 500), ("/nothing", 404)] {
            let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
            let answer = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status(), status, "what the first took of the memory was given back");
            assert_eq!(answer.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
