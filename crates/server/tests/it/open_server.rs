//! A server without keys accepts callers that name it by a loopback or configured name, and no page of another site.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tidegate_server::{Options, Server, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scene::{PATIENCE, Scene, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_of_this_machine_is_refused() {
    let scene = Scene::sqlite().await;
    let port = scene.address().rsplit(':').next().unwrap().to_owned();
    for good in ["localhost", "LocalHost", "localhost.", "127.0.0.1", "127.9.8.7", "[::1]", "[::ffff:127.0.0.1]"] {
        for host in [good.to_owned(), format!("{good}:{port}")] {
            send(scene.request(Method::GET, "/events").header("host", &host)).await.expect(200);
        }
    }
    let refused = [
        "rebound.example",
        "localhost.rebound.example",
        "127.0.0.1.rebound.example",
        "10.0.0.1",
        "0.0.0.0",
        "[::]",
        "[fe80::1]",
        "localhost@rebound.example",
        "rebound.example:80@localhost",
        "xn--localhost",
    ];
    for host in refused {
        for (method, path) in [(Method::GET, "/events"), (Method::GET, "/events/subscribe?tags=a&worker_id=w")] {
            let text = send(scene.request(method, path).header("host", host)).await.refused(403, "forbidden");
            assert!(text.contains("auth.hosts"), "{host}: {text}");
        }
        let event = json!({ "title": "t", "tags": "a" });
        send(scene.request(Method::POST, "/events").header("host", host).json(&event)).await.refused(403, "forbidden");
    }
    assert_eq!(scene.get("/events").await.expect(200)["total"], 0);
    scene.close().await;
}

/// Sends these bytes and reads the answer until the server closes the connection.
async fn raw(scene: &Scene, request: &str) -> String {
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await.unwrap().unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_name_the_server_is_looked_at() {
    let scene = Scene::sqlite().await;
    let answers = [
        ("GET /events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "200"),
        // The name in the request line takes precedence over the header, and both must be allowed.
        ("GET http://rebound.example/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "403"),
        ("GET http://localhost/events HTTP/1.1\r\nhost: rebound.example\r\nconnection: close\r\n\r\n", "403"),
        ("GET /events HTTP/1.1\r\nhost: localhost\r\nhost: rebound.example\r\nconnection: close\r\n\r\n", "403"),
        ("GET /events HTTP/1.1\r\nconnection: close\r\n\r\n", "403"),
        ("GET /events HTTP/1.0\r\n\r\n", "403"),
        // A liveness check need not name the server.
        ("GET /livez HTTP/1.0\r\n\r\n", "200"),
    ];
    for (request, status) in answers {
        let said = raw(&scene, request).await;
        assert_eq!(said.split(' ').nth(1), Some(status), "{request:?}: {said}");
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_write_nothing() {
    let scene = Scene::sqlite().await;
    let event = json!({ "title": "t", "tags": "a" });
    let publish = |origin: String| send(scene.request(Method::POST, "/events").header("origin", origin).json(&event));
    let foreign = [
        "https://evil.example",
        "null",
        "http://localhost:1",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "nonsense",
        "",
    ];
    for origin in foreign {
        publish(origin.into()).await.refused(403, "forbidden");
    }
    for path in ["/queues/default/pause", "/events/1/cancel", "/events/claim"] {
        let request = scene.request(Method::POST, path).header("origin", "https://evil.example");
        send(request.json(&json!({}))).await.refused(403, "forbidden");
    }
    // Claiming an event is a write, whatever the method says.
    let subscribe = scene.request(Method::GET, "/events/subscribe?tags=a&worker_id=w");
    send(subscribe.header("origin", "https://evil.example")).await.refused(403, "forbidden");
    publish(format!("http://{}", scene.address())).await.expect(201);
    assert_eq!(scene.get("/events").await.expect(200)["total"], 1);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_browser_says_of_the_site_is_read_in_any_case() {
    let scene = Scene::sqlite().await;
    for site in ["cross-site", "Cross-Site", "SAME-SITE", "same-site", "cross-site ", "nonsense"] {
        let request = scene.request(Method::GET, "/events/subscribe?tags=a&worker_id=w");
        send(request.header("sec-fetch-site", site)).await.refused(403, "forbidden");
    }
    for site in ["same-origin", "none", "None"] {
        send(scene.request(Method::GET, "/events").header("sec-fetch-site", site)).await.expect(200);
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_names_are_accepted_too() {
    let mut options = Options::default();
    options.auth.hosts = vec!["Queue.internal".into()];
    let scene = Scene::sqlite_with(options).await;
    let event = json!({ "title": "t", "tags": "a" });
    let publish = |host: &'static str, origin: Option<&'static str>| {
        let request = scene.request(Method::POST, "/events").header("host", host).json(&event);
        send(origin.into_iter().fold(request, |request, origin| request.header("origin", origin)))
    };
    publish("queue.internal", None).await.expect(201);
    publish("queue.internal:8443", Some("https://queue.internal:8443")).await.expect(201);
    // A proxy may not pass on the name that it was called by.
    publish("127.0.0.1", Some("https://queue.internal")).await.expect(201);
    publish("other.internal", None).await.refused(403, "forbidden");
    publish("queue.internal", Some("https://other.internal")).await.refused(403, "forbidden");
    let mut bad = Options::default();
    bad.auth.hosts = vec!["https://queue.internal".into()];
    assert!(matches!(Server::new(scene.queue.clone(), bad), Err(ServerError::Setting(_))));
    scene.close().await;
}

/// Connections wait in the backlog until they are accepted; with a short backlog the later ones would fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_comes_at_once_can_connect() {
    let listener = tidegate_server::listen("127.0.0.1:0".parse().unwrap(), Options::default().limits.backlog).unwrap();
    let address = listener.local_addr().unwrap();
    let crowd = futures_util::future::join_all((0..300).map(|_| TcpStream::connect(address)));
    let crowd = tokio::time::timeout(Duration::from_secs(10), crowd).await.expect("some cannot connect");
    assert!(crowd.iter().all(Result::is_ok));
}
