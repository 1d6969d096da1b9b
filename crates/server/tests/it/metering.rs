//! Callers cannot add label values to the metrics.

use std::collections::BTreeSet;

use reqwest::Method;
use tidegate_server::{Metrics, Options};

use crate::scene::{Scene, send};

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_share_one_label() {
    let mut options = Options::default();
    options.metrics = Metrics::install();
    let scene = Scene::sqlite_with(options).await;
    for n in 0..50 {
        let method = Method::from_bytes(format!("AAAAA{n:02}").as_bytes()).unwrap();
        send(scene.request(method, "/livez")).await;
    }
    for method in [Method::GET, Method::POST, Method::from_bytes(b"get").unwrap()] {
        send(scene.request(method, "/livez")).await;
    }
    let shown = scene.get("/metrics").await.text;
    let label = |line: &str| Some(line.split_once("method=\"")?.1.split_once('"')?.0.to_owned());
    let methods: BTreeSet<String> = shown.lines().filter_map(label).collect();
    assert_eq!(methods.iter().map(String::as_str).collect::<Vec<_>>(), ["GET", "OTHER", "POST"]);
    scene.close().await;
}
