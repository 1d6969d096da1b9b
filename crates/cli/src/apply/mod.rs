//! `tidegate apply`: makes a server have what documents say. It reads what is there, shows a plan, asks, and takes the steps.

mod bodies;
mod documents;
mod execute;
mod kinds;
mod normal;
mod plan;
mod present;
mod sets;
mod show;
mod versions;

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::output;

use documents::Document;
use execute::{Done, Execution, Secrets};
use plan::{Action, Plan, Wishes};
use sets::Sets;

pub(crate) use kinds::{Kind, Name};
pub(crate) use present::Present;

/// The exit code of `--check` when there is something to change.
const HAS_CHANGES: u8 = 2;

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Files and folders with documents, in YAML or JSON; - for standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
    /// Only show the plan; the exit code is 2 when there is something to change.
    #[arg(long)]
    check: bool,
    /// Do not ask.
    #[arg(long, short = 'y', conflicts_with = "check")]
    yes: bool,
    /// Delete what this set has made and the documents no longer have.
    #[arg(long)]
    prune: bool,
    /// The name of this set of documents, under which the server keeps what it has made.
    #[arg(long, value_name = "NAME", default_value = "default")]
    set: String,
    /// The name that this set had before: what that has made is this set's from now on.
    #[arg(long, value_name = "NAME")]
    renamed_from: Option<String>,
    /// Take over what exists already, so that --prune may delete it later.
    #[arg(long)]
    adopt: bool,
    /// Add the signing secrets of new subscriptions to this file instead of printing them.
    #[arg(long, value_name = "FILE")]
    secrets_file: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: ApplyArgs) -> Result<ExitCode, Failure> {
    let documents = documents::read(&args.files)?;
    let client = Client::new(&args.server)?;
    let mut present = Present::read(&client).await?;
    let sets = Sets::read(&client, &args.set, args.renamed_from.as_deref(), &present).await?;
    let plan = plan_on_tags(&args, &documents, &mut present, &sets, &client).await?;
    if !args.server.json {
        show::table(&plan);
    }
    let has_changes = plan.changes().next().is_some();
    if args.check {
        if args.server.json {
            output::json(&show::json(&plan, &args.set))?;
        }
        return Ok(if has_changes { ExitCode::from(HAS_CHANGES) } else { ExitCode::SUCCESS });
    }
    if has_changes && !args.yes && !confirmed()? {
        return Err("nothing was applied".into());
    }
    let secrets = match &args.secrets_file {
        Some(file) => Secrets::File(secrets_file(file)?),
        None if args.server.json => Secrets::Kept(Vec::new()),
        None => Secrets::Printed,
    };
    let mut execution = Execution { client: &client, present, sets, secrets };
    let done = execution.run(&plan).await?;
    report(&args, &plan, &done, execution.secrets)
}

/// The plan, made on what was read together with its entity tag wherever something is to change.
async fn plan_on_tags(
    args: &ApplyArgs,
    documents: &[Document],
    present: &mut Present,
    sets: &Sets,
    client: &Client,
) -> Result<Plan, Failure> {
    for document in documents {
        let name = present.own_name(&document.name);
        if matches!(name.kind, Kind::EventType | Kind::Schema) {
            present.refresh(client, &name).await?;
        }
    }
    let wishes = Wishes { prune: args.prune, adopt: args.adopt };
    let first = plan::plan(documents, present, sets, wishes)?;
    let is_untagged = |name: &Name| present.things.get(name).is_some_and(|thing| thing.tag.is_none());
    let changed = first.changes().map(|step| step.name.clone());
    let untagged: Vec<Name> = changed.filter(|name| name.kind.path().is_some() && is_untagged(name)).collect();
    if untagged.is_empty() {
        return Ok(first);
    }
    for name in &untagged {
        present.refresh(client, name).await?;
    }
    plan::plan(documents, present, sets, wishes)
}

/// Asks on the terminal.
fn confirmed() -> Result<bool, Failure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err("nothing was applied: there is no terminal to ask on; pass --yes".into());
    }
    eprint!("Apply? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// The file of secrets, which only its owner may read. Opened before anything is made, so that no secret is lost.
fn secrets_file(path: &Path) -> Result<std::fs::File, Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.open(path).map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
}

fn report(args: &ApplyArgs, plan: &Plan, done: &Done, secrets: Secrets) -> Result<ExitCode, Failure> {
    let total = plan.changes().count();
    let new = done.steps.iter().any(|(action, name)| *action == Action::Create && name.kind == Kind::Subscription);
    if args.server.json {
        let mut shown = show::json(plan, &args.set);
        let applied = done.steps.iter().map(|(action, name)| {
            json!({ "action": action.word(), "kind": name.kind.word(), "client": name.client, "code": name.code })
        });
        shown.insert("applied".into(), applied.collect());
        if let Secrets::Kept(secrets) = secrets {
            shown.insert("secrets".into(), secrets.into());
        }
        let failed = done.failed.as_ref().map(|(_, why)| why.clone());
        shown.insert("error".into(), failed.map_or(Value::Null, Value::from));
        output::json(&shown)?;
    } else {
        for (action, name) in &done.steps {
            let verb = match action {
                Action::Create => "created",
                Action::Change => "changed",
                Action::Adopt => "adopted",
                Action::Delete if name.kind == Kind::EventType => "archived",
                Action::Delete => "deleted",
                Action::Unchanged => continue,
            };
            output::line(&output::shown(&format!("{name} is {verb}")));
        }
    }
    if new {
        let text = match &args.secrets_file {
            Some(file) => format!("the signing secrets of new subscriptions are in {}", file.display()),
            None => {
                "above are the signing secrets of new subscriptions: store them now, they are not shown again".into()
            }
        };
        eprintln!("{text}");
    }
    match &done.failed {
        Some((_, why)) => {
            let left = format!("{} of {total} steps were taken; apply again for the rest", done.steps.len());
            Err(format!("{why}\ntidegate: {left}").into())
        }
        None => Ok(ExitCode::SUCCESS),
    }
}
