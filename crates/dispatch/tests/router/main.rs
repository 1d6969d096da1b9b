//! Jobs that are delivered as webhooks, on both databases, from the event to the record of the last attempt.

#[path = "../webhook/receiver.rs"]
#[allow(dead_code)]
mod receiver;

mod crashes;
mod limits;
mod orders;
mod outcomes;
mod replays;
mod scene;
mod secrets;
mod task_desk;
mod tasks;
mod traces;
