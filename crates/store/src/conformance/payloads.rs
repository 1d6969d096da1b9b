//! Payloads are bytes, returned exactly as sent.

use tidegate_core::NewEvent;

use super::scene::*;

async fn round_trip(scene: &Scene, payloads: Vec<Vec<u8>>) {
    let store = scene.open().await;
    let published = publish(&store, payloads.iter().map(|payload| NewEvent::new("t", payload.clone())).collect()).await;
    let claimed = claim(&store, payloads.len()).await;
    assert_eq!(ids(&claimed), published);
    for (claimed, payload) in claimed.iter().zip(&payloads) {
        assert!(claimed.fact.payload == payload.as_slice(), "a claim returns the bytes");
        assert!(view(&store, claimed.id).await.fact.payload == payload.as_slice(), "so does reading the entry");
        complete(&store, claimed).await;
        assert!(view(&store, claimed.id).await.fact.payload == payload.as_slice(), "also after the end");
    }
}

pub(super) async fn every_byte_value_comes_back(scene: Scene) {
    let all: Vec<u8> = (0..=255).collect();
    let reversed: Vec<u8> = (0..=255).rev().collect();
    let singles = (0..=255).map(|byte| vec![byte]);
    round_trip(&scene, singles.chain([all, reversed, vec![0; 10], vec![255; 10]]).collect()).await;
}

pub(super) async fn empty_and_large_payloads(scene: Scene) {
    let mebibyte: Vec<u8> = (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    round_trip(&scene, vec![Vec::new(), mebibyte.clone(), Vec::new(), vec![b'a'; 1 << 20], mebibyte]).await;
}

pub(super) async fn json_is_not_reformatted(scene: Scene) {
    let texts = [
        "{\"b\":1,  \"a\":2, \"a\":3}",
        "\"\\u0000\"",
        "1e400",
        "0.10000000000000000000000001",
        "{ not json",
        "\u{feff}{}",
        " \n\t{}\r\n",
    ];
    round_trip(&scene, texts.map(|text| text.as_bytes().to_vec()).to_vec()).await;
}
