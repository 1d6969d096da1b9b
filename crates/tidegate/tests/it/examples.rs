//! The examples, run on both databases.

use crate::databases::on_each_database;

#[path = "../../examples/exactly_once.rs"]
#[expect(dead_code, reason = "its main")]
mod exactly_once;
#[path = "../../examples/handlers.rs"]
#[expect(dead_code, reason = "its main")]
mod handlers;
#[path = "../../examples/outbox.rs"]
#[expect(dead_code, reason = "its main")]
mod outbox;
#[path = "../../examples/projection.rs"]
#[expect(dead_code, reason = "its main")]
mod projection;
#[path = "../../examples/schedule.rs"]
#[expect(dead_code, reason = "its main")]
mod schedule;

on_each_database! {
    async fn the_outbox_delivers_what_was_committed(place) {
        let delivered = outbox::run(&place.address()).await.unwrap();
        assert_eq!(delivered, ["order 1", "order 3", "order 4"]);
    }

    async fn only_the_failed_handler_runs_again(place) {
        let lines = handlers::run(&place.address()).await.unwrap();
        assert_eq!(lines, [
            "mail about order 7",
            "the bank is closed on attempt 1",
            "the bank is closed on attempt 2",
            "order 7 is billed on attempt 3",
        ]);
    }

    async fn effects_happen_exactly_once(place) {
        assert_eq!(exactly_once::run(&place.address()).await.unwrap(), 50);
    }

    async fn a_projection_is_rebuilt_beside_the_old_one(place) {
        let ann = projection::run(&place.address()).await.unwrap().unwrap();
        // Every third of 1..=1000: 3, 6 … 999.
        assert_eq!((ann.orders, ann.amount, ann.largest), (333, 166_833, 999));
    }

    async fn each_tick_comes_once(place) {
        let ticks = schedule::run(&place.address()).await.unwrap();
        assert_eq!(ticks.len(), 3);
        assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
    }
}
