//! `/openapi.json` and `/docs`: the API described, and pages to read and try it that need no network.

use std::sync::{Arc, OnceLock};

use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use http::header;
use utoipa_swagger_ui::Config;

use crate::error::{ApiError, Code, Result};
use crate::openapi;

/// The description, as JSON.
pub(crate) async fn document() -> Response {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi::document().into()).clone();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Whoever opens the server's address wants to know what this is.
pub(crate) async fn first_page() -> Redirect {
    Redirect::temporary("/docs/")
}

/// Relative links in the pages need the slash.
pub(crate) async fn redirect() -> Redirect {
    Redirect::permanent("/docs/")
}

/// The first page.
pub(crate) async fn index() -> Result<Response> {
    file("")
}

/// What it loads.
pub(crate) async fn asset(Path(path): Path<String>) -> Result<Response> {
    file(&path)
}

fn file(path: &str) -> Result<Response> {
    let config = Arc::new(Config::from("/openapi.json"));
    let missing = || ApiError::new(Code::NotFound, "there is no such page");
    let found = utoipa_swagger_ui::serve(path, config).map_err(|_| missing())?.ok_or_else(missing)?;
    let headers = [
        (header::CONTENT_TYPE, found.content_type),
        // Nothing from elsewhere: the pages work without a network, and no other site can bring code into them.
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'".into(),
        ),
    ];
    let mut bytes = found.bytes.into_owned();
    if matches!(path, "" | "index.html") {
        bytes = String::from_utf8_lossy(&bytes).replace("<title>Swagger UI</title>", "<title>Tidegate</title>").into();
    }
    Ok((headers, bytes).into_response())
}
