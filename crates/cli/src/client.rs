//! The client of a server: its address, the key, requests, and the errors that it answers with.

use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use crate::exact;
use crate::failure::Failure;
use crate::output::shown;

/// How to reach the server, and how to print its answers.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server.
    #[arg(long, env = "TIDEGATE_URL", default_value = "http://127.0.0.1:8080", value_name = "URL")]
    url: String,
    /// API key or token.
    #[arg(long, env = "TIDEGATE_KEY", hide_env_values = true, value_name = "KEY")]
    key: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

/// An answer with an error status.
#[derive(Debug, thiserror::Error)]
#[error("{error} ({status})")]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
    pub(crate) code: String,
}

impl Client {
    pub(crate) fn new(args: &ServerArgs) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .timeout(Duration::from_secs(120))
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { http, url: args.url.trim_end_matches('/').into(), key: args.key.clone() })
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a GET request.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.send(self.request(Method::GET, path).query(query)).await
    }

    /// Sends a POST request.
    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        self.send(with_json(self.request(Method::POST, path), body)?).await
    }

    /// Sends a POST request with further headers.
    pub(crate) async fn post_with(
        &self,
        path: &str,
        body: &impl Serialize,
        headers: &[(&str, &str)],
    ) -> Result<Value, Failure> {
        let request = with_json(self.request(Method::POST, path), body)?;
        self.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
    }

    /// Sends a POST request with bytes of a media type, or of none.
    pub(crate) async fn post_bytes(
        &self,
        path: &str,
        query: &[(&str, String)],
        content_type: Option<&str>,
        bytes: Vec<u8>,
    ) -> Result<Value, Failure> {
        let request = self.request(Method::POST, path).query(query).body(bytes);
        self.send(content_type.iter().fold(request, |request, name| request.header("content-type", *name))).await
    }

    /// Sends a DELETE request.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Sends a PUT request.
    pub(crate) async fn put(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        self.send(with_json(self.request(Method::PUT, path), body)?).await
    }

    /// Sends a GET request and returns the answer with its entity tag.
    pub(crate) async fn get_tagged(&self, path: &str) -> Result<(Value, Option<String>), Failure> {
        self.send_tagged(Method::GET, path, None, None).await
    }

    /// Sends a request with `If-Match`, and returns the answer with its entity tag.
    pub(crate) async fn send_tagged(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        on: Option<&str>,
    ) -> Result<(Value, Option<String>), Failure> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = with_json(request, body)?;
        }
        let request = on.into_iter().fold(request, |request, tag| request.header("if-match", tag));
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        Ok((self.read(response).await?, tag))
    }

    /// Sends a GET request and returns the text of the answer; `None` for 204. Not parsed, because payloads must stay
    /// as they are.
    pub(crate) async fn get_text(&self, path: &str, query: &[(&str, String)]) -> Result<Option<String>, Failure> {
        let response = self.request(Method::GET, path).query(query).send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let text = response.text().await?;
        if status.is_success() { Ok(Some(text)) } else { Err(refused(status, &text).into()) }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        self.read(response).await
    }

    async fn read(&self, response: reqwest::Response) -> Result<Value, Failure> {
        let status = response.status();
        let text = response.text().await.map_err(|error| self.lost(&error))?;
        if !status.is_success() {
            return Err(refused(status, &text).into());
        }
        if text.is_empty() { Ok(Value::Null) } else { Ok(exact::from_str(&text)?) }
    }

    fn lost(&self, error: &reqwest::Error) -> Failure {
        let why = if error.is_connect() { "is a server running there?" } else { "the connection broke or timed out" };
        format!("{} does not answer: {why}", self.url).into()
    }
}

/// A request with a body of JSON.
fn with_json(request: reqwest::RequestBuilder, body: &impl Serialize) -> Result<reqwest::RequestBuilder, Failure> {
    Ok(request.header("content-type", "application/json").body(exact::to_string(body)?))
}

fn refused(status: StatusCode, text: &str) -> Refused {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| body[name].as_str().map(str::to_owned);
    let mut error = shown(&field("error").unwrap_or_else(|| text.chars().take(200).collect()));
    for violation in body["violations"].as_array().into_iter().flatten() {
        let at = |name: &str| violation[name].as_u64().map(|number| format!(" {name} {number}")).unwrap_or_default();
        let (path, message) = (&violation["path"], &violation["message"]);
        let (path, message) = (path.as_str().unwrap_or_default(), message.as_str().unwrap_or_default());
        error.push_str(&format!("\n  {}{}{}: {}", shown(path), at("line"), at("column"), shown(message)));
    }
    if status == StatusCode::UNAUTHORIZED {
        error.push_str("; pass a key with --key or in TIDEGATE_KEY, `tidegate keys create` makes one");
    }
    Refused { status, error, code: field("code").unwrap_or_default() }
}

/// All items of a list that comes in pages.
pub(crate) async fn all(client: &Client, path: &str, filters: &[(&str, String)]) -> Result<Vec<Value>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = filters.to_vec();
        query.push(("limit", "1000".to_owned()));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut page = client.get(path, &query).await?;
        if let Some(more) = page["items"].as_array_mut() {
            items.append(more);
        }
        cursor = page["nextCursor"].as_str().map(Into::into);
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

/// Whether the server answered with this status.
pub(crate) fn is_status(failure: &Failure, status: StatusCode) -> bool {
    failure.downcast_ref::<Refused>().is_some_and(|refused| refused.status == status)
}

/// A text, percent-encoded as a part of a path or a query.
pub(crate) fn path_part(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'~');
    text.bytes().map(|byte| if plain(&byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parts_are_encoded() {
        assert_eq!(path_part("mail"), "mail");
        assert_eq!(path_part("a/b c"), "a%2Fb%20c");
    }

    #[test]
    fn errors_say_what_the_server_said() {
        let error = refused(StatusCode::CONFLICT, r#"{"error":"not yours","code":"lease_lost"}"#);
        assert_eq!(error.to_string(), "not yours (409 Conflict)");
        assert_eq!(error.code, "lease_lost");
        assert_eq!(refused(StatusCode::BAD_GATEWAY, "<html>").error, "<html>");
        assert!(refused(StatusCode::UNAUTHORIZED, "{}").to_string().contains("TIDEGATE_KEY"));
    }
}
