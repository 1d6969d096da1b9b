//! Tokens of an OpenID Connect issuer that runs in the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Json;
use axum::routing::get;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_server::{OidcOptions, Options};
use tokio::sync::watch;

use crate::scene::{Answer, PATIENCE, Scene, send};

/// An RSA key made for this test and used nowhere else.
const RSA: &str = include_str!("keys/rsa.txt");
const RSA_MODULUS: &str = include_str!("keys/rsa_n.txt");
/// An EC key on the curve P-256, likewise.
const EC: &str = include_str!("keys/ec.txt");
const EC_POINT: &str = include_str!("keys/ec_xy.txt");

struct Issuer {
    url: String,
    asked: Arc<AtomicUsize>,
    /// While set, the issuer accepts requests for its keys and does not answer them.
    hangs: watch::Sender<bool>,
}

impl Issuer {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let discovery = json!({ "issuer": url, "jwks_uri": format!("{url}/keys") });
        let (x, y) = EC_POINT.trim().split_once(' ').unwrap();
        let keys = json!({ "keys": [
            { "kty": "RSA", "use": "sig", "alg": "RS256", "kid": "rsa", "n": RSA_MODULUS.trim(), "e": "AQAB" },
            { "kty": "EC", "use": "sig", "alg": "ES256", "kid": "ec", "crv": "P-256", "x": x, "y": y },
        ] });
        let counter = Arc::clone(&asked);
        let hangs = watch::Sender::new(false);
        let hanging = hangs.clone();
        let app = axum::Router::new()
            .route("/.well-known/openid-configuration", get(move || async move { Json(discovery) }))
            .route(
                "/keys",
                get(move || async move {
                    counter.fetch_add(1, Ordering::SeqCst);
                    let _ = hanging.subscribe().wait_for(|hangs| !hangs).await;
                    Json(keys)
                }),
            );
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, asked, hangs }
    }

    fn claims(&self) -> Value {
        let now = tidegate::Timestamp::now().as_second();
        let client = tidegate::Tsid::from_i64(5);
        json!({
            "iss": self.url, "aud": "tidegate", "sub": "alice", "exp": now + 600, "scope": "openid tidegate:publish",
            "tidegate_client": client,
        })
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.auth.required = true;
        options.auth.oidc = Some(OidcOptions::new(&self.url, "tidegate"));
        options
    }

    async fn asked(&self, times: usize) {
        let started = Instant::now();
        while self.asked.load(Ordering::SeqCst) < times {
            assert!(started.elapsed() < PATIENCE, "the issuer is not asked");
            tokio::task::yield_now().await;
        }
    }
}

fn sign(claims: &Value, algorithm: Algorithm, kid: &str) -> String {
    let mut header = Header::new(algorithm);
    header.kid = Some(kid.into());
    let key = match algorithm {
        Algorithm::RS256 => EncodingKey::from_rsa_der(&decode(RSA)),
        Algorithm::ES256 => EncodingKey::from_ec_der(&decode(EC)),
        _ => EncodingKey::from_secret(b"secret"),
    };
    encode(&header, claims, &key).unwrap()
}

/// Reads base64.
fn decode(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| !c.is_ascii_whitespace() && *c != b'=').map(value).collect();
    let mut bytes = Vec::new();
    for chunk in digits.chunks(4) {
        let bits = chunk.iter().fold(0_u32, |bits, digit| (bits << 6) | u32::from(*digit)) << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    bytes
}

async fn publish(scene: &Scene, token: &str) -> Answer {
    let event = json!({ "title": "t", "tags": "a" });
    let request = scene.http.request(Method::POST, format!("http://{}/events", scene.address()));
    send(request.bearer_auth(token).json(&event)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_the_issuer_are_accepted_and_others_are_not() {
    let issuer = Issuer::start().await;
    let scene = Scene::sqlite_with(issuer.options()).await;
    let with = |name: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[name] = value;
        claims
    };
    for (algorithm, kid) in [(Algorithm::RS256, "rsa"), (Algorithm::ES256, "ec")] {
        publish(&scene, &sign(&issuer.claims(), algorithm, kid)).await.expect(201);
    }
    publish(&scene, &sign(&with("scope", json!(["tidegate:publish"])), Algorithm::ES256, "ec")).await.expect(201);
    // Another application's scopes are not ours, whatever they are called.
    for scope in [json!("openid"), json!("publish admin"), json!(["admin"]), json!("other:publish"), json!("tidegate:")]
    {
        publish(&scene, &sign(&with("scope", scope), Algorithm::ES256, "ec")).await.refused(403, "forbidden");
    }

    let now = tidegate::Timestamp::now().as_second();
    for (name, value) in [
        ("iss", json!("https://elsewhere.example")),
        ("aud", json!("another")),
        ("exp", json!(now - 3600)),
        ("exp", Value::Null),
        ("nbf", json!(now + 3600)),
        ("tidegate_client", json!("nonsense")),
        ("tidegate_client", json!("")),
        ("tidegate_client", Value::Null),
    ] {
        let token = sign(&with(name, value.clone()), Algorithm::RS256, "rsa");
        let text = publish(&scene, &token).await.refused(401, "unauthorized");
        assert!(!text.contains(&token), "{name}={value}: {text}");
    }
    let good = sign(&issuer.claims(), Algorithm::RS256, "rsa");
    let (head, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{head}.{}{}", if signature.starts_with('A') { "B" } else { "A" }, &signature[1..]);
    let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", head.split('.').nth(1).unwrap());
    let symmetric = sign(&issuer.claims(), Algorithm::HS256, "rsa");
    let unknown = sign(&issuer.claims(), Algorithm::RS256, "unknown");
    for token in [forged, unsigned, symmetric, unknown.clone(), "a.b.c".into()] {
        publish(&scene, &token).await.refused(401, "unauthorized");
    }
    for _ in 0..20 {
        publish(&scene, &unknown).await.refused(401, "unauthorized");
    }
    assert!(issuer.asked.load(Ordering::SeqCst) <= 3, "an unknown key id must not cause a fetch each time");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_a_client_is_accepted_where_that_is_allowed() {
    let issuer = Issuer::start().await;
    let mut options = issuer.options();
    options.auth.oidc.as_mut().unwrap().allow_unscoped = true;
    let scene = Scene::sqlite_with(options).await;
    let mut claims = issuer.claims();
    claims.as_object_mut().unwrap().remove("tidegate_client");
    claims["scope"] = json!("tidegate:publish tidegate:read");
    let token = sign(&claims, Algorithm::RS256, "rsa");
    publish(&scene, &token).await.expect(201);
    publish(&scene, &sign(&issuer.claims(), Algorithm::RS256, "rsa")).await.expect(201);
    let request = scene.http.get(format!("http://{}/events", scene.address()));
    assert_eq!(send(request.bearer_auth(&token)).await.expect(200)["total"], 2, "it sees all clients");
    scene.close().await;
}

/// A fetch of the keys that hangs delays no token whose key is known, and made-up key ids do not cause a fetch each.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_hangs_holds_up_no_known_key() {
    let issuer = Issuer::start().await;
    let scene = Arc::new(Scene::sqlite_with(issuer.options()).await);
    let good = sign(&issuer.claims(), Algorithm::RS256, "rsa");
    publish(&scene, &good).await.expect(201);
    // Fetches are paced: repeat until an unknown key causes the second one.
    issuer.hangs.send_replace(true);
    let unknown = sign(&issuer.claims(), Algorithm::RS256, "unknown");
    let started = Instant::now();
    let waiting = loop {
        let (scene, unknown) = (Arc::clone(&scene), unknown.clone());
        let mut asking = tokio::spawn(async move { publish(&scene, &unknown).await });
        let asked = async {
            issuer.asked(2).await;
        };
        tokio::select! {
            () = asked => break asking,
            answer = &mut asking => drop(answer.unwrap().refused(401, "unauthorized")),
        }
        assert!(started.elapsed() < PATIENCE);
    };
    for _ in 0..10 {
        publish(&scene, &good).await.expect(201);
    }
    assert!(!waiting.is_finished(), "known keys were answered only after the issuer");
    issuer.hangs.send_replace(false);
    waiting.await.unwrap().refused(401, "unauthorized");
    for n in 0..50 {
        let made_up = sign(&issuer.claims(), Algorithm::RS256, &format!("made-up-{n}"));
        publish(&scene, &made_up).await.refused(401, "unauthorized");
    }
    assert!(issuer.asked.load(Ordering::SeqCst) <= 3, "made-up key ids must not cause a fetch each");
    Arc::into_inner(scene).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_old_serve_while_they_are_fetched_anew() {
    let issuer = Issuer::start().await;
    let mut options = issuer.options();
    options.auth.oidc.as_mut().unwrap().refresh_after = std::time::Duration::ZERO;
    let scene = Scene::sqlite_with(options).await;
    let good = sign(&issuer.claims(), Algorithm::ES256, "ec");
    publish(&scene, &good).await.expect(201);
    issuer.hangs.send_replace(true);
    let started = Instant::now();
    // Every request finds the keys old; one of them starts a fetch, and none waits for it.
    while issuer.asked.load(Ordering::SeqCst) < 2 {
        publish(&scene, &good).await.expect(201);
        assert!(started.elapsed() < PATIENCE, "old keys are not fetched again");
    }
    for _ in 0..10 {
        publish(&scene, &good).await.expect(201);
    }
    issuer.hangs.send_replace(false);
    scene.close().await;
}
