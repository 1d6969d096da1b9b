//! `tidegate jobs`: lists and shows dispatch jobs, says why one is not delivered, retries, cancels and ignores them.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArgs, path_part};
use crate::failure::Failure;
use crate::output::{self, cell, shown};

#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    command: JobsCommand,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// List jobs, newest first.
    List {
        #[command(flatten)]
        filter: Filter,
        /// Maximum number of jobs.
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Where to continue, as the previous page printed it.
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a job with the attempts at it.
    Show(Named),
    /// Say why a job is not delivered.
    Why(Named),
    /// Retry a job that is ERROR or CANCELLED, or all that match.
    Retry(Act),
    /// Cancel a job that has not ended, or all that match.
    Cancel(Act),
    /// Ignore a job that is ERROR, or all that match: groups that they block go on.
    Ignore(Act),
}

#[derive(Debug, Args)]
struct Named {
    /// Id of the job.
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Which jobs.
#[derive(Debug, Args)]
struct Filter {
    /// Only jobs that are PENDING, QUEUED, IN_PROGRESS, COMPLETED, ERROR or CANCELLED.
    #[arg(long)]
    status: Option<String>,
    /// Only jobs of this kind: EVENT or TASK.
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs with this code: of an event's job the event's type.
    #[arg(long)]
    code: Option<String>,
    /// Only jobs of the subscription with this id.
    #[arg(long, value_name = "ID")]
    subscription: Option<String>,
    /// Only jobs of the event with this id.
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// Only jobs of this message group: the subscription's code, with a colon and the event's group if that has one.
    #[arg(long)]
    group: Option<String>,
    /// Only jobs that the dispatch pool with this id limits.
    #[arg(long, value_name = "ID")]
    pool: Option<String>,
    /// Only jobs of the client with this id.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Only jobs made at this moment or later, such as 2030-01-31T10:30:00Z.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only jobs made before this moment.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

#[derive(Debug, Args)]
struct Act {
    /// Id of the job; without it, all that match, which needs --yes.
    #[arg(conflicts_with_all = ["status", "kind", "code", "subscription", "event", "group", "pool", "client", "from", "to"])]
    id: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// Reason, for the audit.
    #[arg(long)]
    reason: Option<String>,
    /// Change all jobs that match.
    #[arg(long)]
    yes: bool,
    /// Jobs per second at most, where many are changed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    per_second: u32,
    #[command(flatten)]
    server: ServerArgs,
}

impl Filter {
    /// The filters by the names that the server has for them.
    fn named(self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [
            ("status", self.status),
            ("kind", self.kind),
            ("code", self.code),
            ("subscriptionId", self.subscription),
            ("eventId", self.event),
            ("messageGroup", self.group),
            ("poolId", self.pool),
            ("clientId", self.client),
            ("from", self.from),
            ("to", self.to),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

pub(crate) async fn run(args: JobsArgs) -> Result<(), Failure> {
    match args.command {
        JobsCommand::List { filter, limit, cursor, server } => {
            let mut query: Vec<(&str, String)> = filter.named().collect();
            query.push(("limit", limit.to_string()));
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            let page = Client::new(&server)?.get("/api/dispatch-jobs", &query).await?;
            if server.json { output::json(&page) } else { show_page(&page) }
        }
        JobsCommand::Show(of) => {
            let job = Client::new(&of.server)?.get(&path(&of.id, ""), &[]).await?;
            if of.server.json { output::json(&job) } else { show_job(&job) }
        }
        JobsCommand::Why(of) => {
            let why = Client::new(&of.server)?.get(&path(&of.id, "/why"), &[]).await?;
            if of.server.json { output::json(&why) } else { show_fields(&why, &["jobId"]) }
        }
        JobsCommand::Retry(act) => change(act, "retry", "retried").await,
        JobsCommand::Cancel(act) => change(act, "cancel", "cancelled").await,
        JobsCommand::Ignore(act) => change(act, "ignore", "ignored").await,
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/api/dispatch-jobs/{}{rest}", path_part(id))
}

async fn change(act: Act, verb: &str, done: &str) -> Result<(), Failure> {
    let client = Client::new(&act.server)?;
    let Some(id) = &act.id else { return change_all(act, &client, verb, done).await };
    let body = json!({ "reason": act.reason });
    let job = client.post(&path(id, &format!("/{verb}")), &body).await?;
    if act.server.json {
        return output::json(&job);
    }
    output::line(&shown(&format!("{} is {done}: {}", cell(&job, "id"), cell(&job, "status"))));
    Ok(())
}

/// Changes all jobs that match, piece by piece.
async fn change_all(act: Act, client: &Client, verb: &str, done: &str) -> Result<(), Failure> {
    if !act.yes {
        return Err(format!("name a job, or {verb} all that match with --yes; `tidegate jobs list` shows them").into());
    }
    let mut body: Map<String, Value> = act.filter.named().map(|(name, value)| (name.into(), value.into())).collect();
    body.insert("action".into(), verb.into());
    body.insert("limit".into(), 10_000.into());
    body.insert("perSecond".into(), act.per_second.into());
    body.extend(act.reason.map(|reason| ("reason".to_owned(), reason.into())));
    let (mut changed, mut refused) = (0, 0);
    loop {
        let answer = client.post("/api/dispatch-jobs/bulk", &body).await?;
        changed += answer["done"].as_u64().unwrap_or_default();
        refused += answer["refused"].as_u64().unwrap_or_default();
        let Some(next) = answer["nextCursor"].as_str() else { break };
        eprintln!("{changed} {done} so far");
        body.insert("cursor".into(), next.into());
    }
    if act.server.json {
        return output::json(&json!({ "done": changed, "refused": refused }));
    }
    let others = if refused > 0 { format!(", {refused} could not be") } else { String::new() };
    output::line(&format!("{changed} {done}{others}"));
    Ok(())
}

fn show_page(page: &Value) -> Result<(), Failure> {
    let columns = ["id", "status", "code", "targetUrl", "messageGroup", "attemptCount", "lastError", "createdAt"];
    let rows = page["items"].as_array().into_iter().flatten();
    let rows = rows.map(|job| columns.iter().map(|column| cell(job, column)).collect()).collect();
    output::table(&["ID", "STATUS", "CODE", "TARGET", "GROUP", "ATTEMPTS", "ERROR", "CREATED"], rows);
    if let Some(cursor) = page["nextCursor"].as_str() {
        eprintln!("more: --cursor {cursor}");
    }
    Ok(())
}

fn show_job(job: &Value) -> Result<(), Failure> {
    show_fields(job, &["attempts"])?;
    let columns =
        ["generation", "attemptNumber", "attemptedAt", "durationMillis", "status", "responseCode", "errorMessage"];
    if let Some(attempts) = job["attempts"].as_array().filter(|attempts| !attempts.is_empty()) {
        let rows = attempts.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
        output::line("");
        output::table(&["START", "ATTEMPT", "WHEN", "MS", "STATUS", "CODE", "ERROR"], rows);
    }
    Ok(())
}

/// Shows the fields of an object, but for some.
fn show_fields(value: &Value, without: &[&str]) -> Result<(), Failure> {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, value)| !without.contains(&name.as_str()) && !value.is_null());
    output::table(&["FIELD", "VALUE"], fields.map(|(name, _)| vec![name.clone(), cell(value, name)]).collect());
    Ok(())
}
