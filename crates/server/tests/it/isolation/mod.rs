//! Clients are apart: every operation of the OpenAPI document is walked with a client's keys, one of each scope, once in a
//! database of its own and once beside others who use the same names. Both must answer alike, nothing of the others may be
//! shown or named, and their rows must stay as they were.
//!
//! The walk reads the document itself. A new operation is walked without anybody thinking of it, and a new parameter fails
//! the test until [`parties`] says how to fill it.

mod calls;
mod dump;
mod parties;
mod walk;

use crate::scene::Scene;
use walk::{Order, walk};

/// Both databases, both orders of coming.
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
