//! `/openapi.json` and `/docs`: the OpenAPI document, and pages to read and try the API that load nothing from
//! elsewhere.

use std::sync::{Arc, OnceLock};

use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use http::header;
use utoipa_swagger_ui::Config;

use crate::error::{ApiError, Code, Result};
use crate::openapi;

/// The OpenAPI document as JSON.
pub(crate) async fn document() -> Response {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi::document().into()).clone();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// `/` leads to the documentation.
pub(crate) async fn first_page() -> Redirect {
    Redirect::temporary("/docs/")
}

/// Adds the trailing slash that relative links in the pages need.
pub(crate) async fn redirect() -> Redirect {
    Redirect::permanent("/docs/")
}

/// The index page.
pub(crate) async fn index() -> Result<Response> {
    file("")
}

/// A script, style or image of the pages.
pub(crate) async fn asset(Path(path): Path<String>) -> Result<Response> {
    file(&path)
}

fn file(path: &str) -> Result<Response> {
    let config = Arc::new(Config::from("/openapi.json"));
    let missing = || ApiError::new(Code::NotFound, "there is no such page");
    let found = utoipa_swagger_ui::serve(path, config).map_err(|_| missing())?.ok_or_else(missing)?;
    let headers = [
        (header::CONTENT_TYPE, found.content_type),
        // Load nothing from elsewhere: the pages work offline, and no other site can inject code into them.
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
