//! Clients are isolated: every operation of the OpenAPI document is called with a client's keys, one of each scope, in
//! a database of its own and beside other parties that use the same names. Both must answer alike, nothing of the
//! others may be shown or named, and their rows must not change. A client that names what belongs to another is refused
//! by every operation ([`strangers`]).
//!
//! The walk reads the document itself: a new operation is covered automatically, and a new parameter fails the test
//! until [`parties`] says how to fill it.

mod calls;
mod dump;
mod parties;
mod strangers;
mod walk;

use crate::scene::Scene;
use walk::{Order, walk};

/// Walks on both databases, with the other parties' data written before and after the client's.
macro_rules! walks {
    ($($database:ident: $guarded:ident),*) => {$(
        mod $database {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn a_client_among_others_sees_what_it_would_see_alone() {
                walk(Scene::$guarded().await, Scene::$guarded().await, Order::OthersFirst).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_client_that_others_came_after_sees_what_it_would_see_alone() {
                walk(Scene::$guarded().await, Scene::$guarded().await, Order::OthersLast).await;
            }
        }
    )*};
}

walks!(sqlite: guarded_sqlite, postgres: guarded_postgres);
