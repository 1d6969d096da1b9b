//! What only PostgreSQL has: locks of groups, isolation levels, lists that are stuck, answers that are lost on the way. Through the store's public
//! calls and plain SQL; what both databases do belongs into `tidegate_store::conformance`.

mod groups;
mod isolation;
mod lists;
mod lost_answers;
mod scene;
