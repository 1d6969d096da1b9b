//! Runs every case of the conformance suite on every database, each as a test of its own: `sqlite::subject::case` and
//! `postgres::subject::case`. New cases go into `tidegate_store::conformance`, never here.

mod lost_answers;
#[path = "postgres.rs"]
mod on_postgres;
#[path = "sqlite.rs"]
mod on_sqlite;

macro_rules! tests {
    ($($subject:ident { $($name:ident),* $(,)? })*) => {
        tests!(@database sqlite on_sqlite::Sqlite; $($subject { $($name),* })*);
        tests!(@database postgres on_postgres::Postgres; $($subject { $($name),* })*);
    };
    (@database $database:ident $module:ident::$fixture:ident; $($subject:ident { $($name:ident),* })*) => {
        mod $database {
            $(mod $subject {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    let fixture = std::sync::Arc::new(crate::$module::$fixture::new().await);
                    let name = concat!(stringify!($subject), "::", stringify!($name));
                    tidegate_store::conformance::run(name, fixture).await;
                })*
            })*
        }
    };
}

tidegate_store::conformance_cases!(tests);
