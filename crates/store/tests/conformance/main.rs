//! Runs every case of the conformance suite on every database, each as a test of its own: `sqlite::subject::case` and
//! `postgres::subject::case`; and those that hold for jobs too on the second family, as `sqlite_jobs::…` and
//! `postgres_jobs::…`. New cases go into `tidegate_store::conformance`, never here.

mod crashes;
mod lost_answers;
#[path = "postgres.rs"]
mod on_postgres;
#[path = "sqlite.rs"]
mod on_sqlite;
mod upgrade;

use std::sync::Arc;

use tidegate_store::conformance::{Fixture, Jobs};

fn entries(fixture: Arc<dyn Fixture>) -> Arc<dyn Fixture> {
    fixture
}

fn jobs(fixture: Arc<dyn Fixture>) -> Arc<dyn Fixture> {
    Arc::new(Jobs(fixture))
}

macro_rules! tests {
    ($($subject:ident { $($name:ident),* $(,)? })*) => {
        tests!(@database sqlite on_sqlite::Sqlite entries; $($subject { $($name),* })*);
        tests!(@database postgres on_postgres::Postgres entries; $($subject { $($name),* })*);
    };
    (@database $database:ident $module:ident::$fixture:ident $family:ident; $($subject:ident { $($name:ident),* })*) => {
        mod $database {
            $(mod $subject {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    let fixture = std::sync::Arc::new(crate::$module::$fixture::new().await);
                    let name = concat!(stringify!($subject), "::", stringify!($name));
                    tidegate_store::conformance::run(name, crate::$family(fixture)).await;
                })*
            })*
        }
    };
}

macro_rules! tests_of_jobs {
    ($($subject:ident { $($name:ident),* $(,)? })*) => {
        tests!(@database sqlite_jobs on_sqlite::Sqlite jobs; $($subject { $($name),* })*);
        tests!(@database postgres_jobs on_postgres::Postgres jobs; $($subject { $($name),* })*);
    };
}

tidegate_store::conformance_cases!(tests);
tidegate_store::jobs_cases!(tests_of_jobs);
