//! `tidegate types`: event types, their versions and schemas.

mod diff;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArgs, all, path_part};
use crate::failure::Failure;
use crate::files::read;
use crate::output::{self, cell, shown};

#[derive(Debug, Args)]
pub(crate) struct TypesArgs {
    #[command(subcommand)]
    command: TypesCommand,
}

#[derive(Debug, Subcommand)]
enum TypesCommand {
    /// List event types.
    List {
        /// A code with `*` for any of its four parts, such as shop:*:order:*.
        #[arg(long)]
        code: Option<String>,
        /// CURRENT or ARCHIVE.
        #[arg(long)]
        status: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show an event type, or the schema of one of its versions.
    Show {
        #[command(flatten)]
        of: NamedType,
        /// Print the schema of this version.
        #[arg(long, value_name = "VERSION")]
        schema: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Create an event type.
    Create {
        /// application:subdomain:aggregate:event.
        code: String,
        /// A name for people; the code if absent.
        #[arg(long)]
        name: Option<String>,
        /// What the events mean.
        #[arg(long)]
        description: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a version with the schema in a file.
    Add(AddArgs),
    /// Validate the data in a file; the exit code says whether it is valid.
    #[command(disable_version_flag = true)]
    Validate {
        #[command(flatten)]
        of: NamedType,
        /// The data; - for standard input.
        file: PathBuf,
        /// The version; if absent the highest CURRENT one, else the highest DEPRECATED one.
        #[arg(long = "version", value_name = "VERSION")]
        number: Option<String>,
        /// The media type of the data; the version's if absent.
        #[arg(long, value_name = "TYPE")]
        content_type: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show how two versions differ, and what that breaks.
    Diff {
        #[command(flatten)]
        of: NamedType,
        /// The older version.
        old: String,
        /// The newer version.
        new: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Make a version CURRENT.
    Finalise(NamedVersion),
    /// Mark a version as DEPRECATED.
    Deprecate(NamedVersion),
    /// Archive an event type: its events are refused, and nothing of it changes any more.
    Archive {
        #[command(flatten)]
        of: NamedType,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// An event type by its code or its id.
#[derive(Debug, Args)]
struct NamedType {
    /// Code or id of the event type.
    #[arg(value_name = "TYPE")]
    named: String,
}

#[derive(Debug, Args)]
struct NamedVersion {
    #[command(flatten)]
    of: NamedType,
    /// MAJOR.MINOR.
    #[arg(value_name = "VERSION")]
    number: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    of: NamedType,
    /// MAJOR.MINOR.
    #[arg(value_name = "VERSION")]
    number: String,
    /// The schema; - for standard input.
    file: PathBuf,
    /// JSON_SCHEMA, PROTO or XSD; by the file's name if absent.
    #[arg(long, value_name = "TYPE")]
    schema_type: Option<String>,
    /// The media type of the events' data; by the schema's type if absent.
    #[arg(long, value_name = "TYPE")]
    mime_type: Option<String>,
    /// For PROTO: the full name of the message.
    #[arg(long)]
    message: Option<String>,
    /// Assert `format` (JSON_SCHEMA), or refuse unknown fields (PROTO).
    #[arg(long)]
    strict: bool,
    /// Accept that it breaks what the version before accepts, for this reason.
    #[arg(long, value_name = "REASON")]
    force: Option<String>,
    /// Change the version, which must be FINALISING, instead of adding it.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command. `false`: data is not valid.
pub(crate) async fn run(args: TypesArgs) -> Result<bool, Failure> {
    match args.command {
        TypesCommand::List { code, status, server } => list(&server, code, status).await?,
        TypesCommand::Show { of, schema, server } => show(&server, &of, schema.as_deref()).await?,
        TypesCommand::Create { code, name, description, server } => {
            let body = json!({ "code": code, "name": name.as_deref().unwrap_or(&code), "description": description });
            let made = Client::new(&server)?.post("/api/event-types", &body).await?;
            said(&made, &server, &format!("{} is created: {}", cell(&made, "code"), cell(&made, "id")))?;
        }
        TypesCommand::Add(args) => add(args).await?,
        TypesCommand::Validate { of, file, number, content_type, server } => {
            return validate(&server, &of, &file, number, content_type.as_deref()).await;
        }
        TypesCommand::Diff { of, old, new, server } => {
            let found = of.find(&Client::new(&server)?).await?;
            diff::run(&found, &old, &new, server.json)?;
        }
        TypesCommand::Finalise(version) => change(version, "finalise").await?,
        TypesCommand::Deprecate(version) => change(version, "deprecate").await?,
        TypesCommand::Archive { of, server } => {
            let client = Client::new(&server)?;
            let id = of.id(&client).await?;
            let archived = client.post(&format!("/api/event-types/{id}/archive"), &json!({})).await?;
            said(&archived, &server, &format!("{} is archived", cell(&archived, "code")))?;
        }
    }
    Ok(true)
}

impl NamedType {
    /// Its id, looked up if it is named by its code.
    async fn id(&self, client: &Client) -> Result<String, Failure> {
        if !self.named.contains(':') {
            return Ok(path_part(&self.named));
        }
        // The server takes the code for a pattern, and what one matches by chance is not what was named.
        if self.named.split(':').any(|part| part == "*") {
            return Err(format!("{} is a pattern: name one event type", shown(&self.named)).into());
        }
        let page = client.get("/api/event-types", &[("code", self.named.clone()), ("limit", "1".into())]).await?;
        let found = page["items"].as_array().into_iter().flatten().find(|item| item["code"] == self.named.as_str());
        let missing = || format!("there is no event type {}: `tidegate types list` shows all", shown(&self.named));
        Ok(cell(found.ok_or_else(missing)?, "id"))
    }

    async fn find(&self, client: &Client) -> Result<Value, Failure> {
        client.get(&format!("/api/event-types/{}", self.id(client).await?), &[]).await
    }
}

/// The version of this number of an event type.
fn version_of<'v>(found: &'v Value, number: &str) -> Result<&'v Value, Failure> {
    let versions = found["specVersions"].as_array().map_or(&[][..], Vec::as_slice);
    let missing = || format!("{} has no version {}", cell(found, "code"), shown(number));
    Ok(versions.iter().find(|version| version["version"] == number).ok_or_else(missing)?)
}

fn said(answer: &Value, server: &ServerArgs, text: &str) -> Result<(), Failure> {
    if server.json {
        return output::json(answer);
    }
    output::line(&shown(text));
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        output::line(&shown(&format!("  cannot tell: {}: {}", cell(warning, "path"), cell(warning, "message"))));
    }
    Ok(())
}

async fn list(server: &ServerArgs, code: Option<String>, status: Option<String>) -> Result<(), Failure> {
    let filters = [("code", code), ("status", status)];
    let query: Vec<_> = filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let items = all(&Client::new(server)?, "/api/event-types", &query).await?;
    if server.json {
        return output::json(&items);
    }
    let row = |item: &Value| {
        let versions = item["specVersions"].as_array().into_iter().flatten();
        let versions: Vec<String> =
            versions.map(|version| format!("{} {}", cell(version, "version"), cell(version, "status"))).collect();
        vec![cell(item, "code"), cell(item, "status"), versions.join(", "), cell(item, "name"), cell(item, "id")]
    };
    output::table(&["CODE", "STATUS", "VERSIONS", "NAME", "ID"], items.iter().map(row).collect());
    Ok(())
}

async fn show(server: &ServerArgs, of: &NamedType, schema: Option<&str>) -> Result<(), Failure> {
    let found = of.find(&Client::new(server)?).await?;
    if let Some(number) = schema {
        let text = cell(version_of(&found, number)?, "schema");
        output::line(text.trim_end_matches('\n'));
        return Ok(());
    }
    if server.json {
        return output::json(&found);
    }
    for name in ["code", "name", "description", "status", "id", "createdAt", "updatedAt"] {
        output::line(&shown(&format!("{name:<12} {}", cell(&found, name))));
    }
    let row = |version: &Value| {
        let forced = cell(&version["force"], "reason");
        let columns = ["version", "status", "schemaType", "mimeType", "message"].map(|name| cell(version, name));
        columns.into_iter().chain([forced]).collect()
    };
    let rows = found["specVersions"].as_array().into_iter().flatten().map(row).collect();
    output::table(&["VERSION", "STATUS", "SCHEMA", "MIME TYPE", "MESSAGE", "FORCED"], rows);
    Ok(())
}

async fn add(args: AddArgs) -> Result<(), Failure> {
    let AddArgs { of, number, file, schema_type, mime_type, message, strict, force, replace, server } = args;
    let schema_type = match schema_type {
        Some(named) => named,
        None => by_name(&file)?.to_owned(),
    };
    let usual = match schema_type.as_str() {
        "PROTO" => "application/protobuf",
        "XSD" => "application/xml",
        _ => "application/json",
    };
    let schema = read(&file)?;
    let schema = String::from_utf8(schema).map_err(|_| format!("{} is not UTF-8", file.display()))?;
    let mut body = Map::new();
    body.insert("version".into(), number.clone().into());
    body.insert("mimeType".into(), mime_type.unwrap_or_else(|| usual.into()).into());
    body.insert("schemaType".into(), schema_type.into());
    body.insert("schema".into(), schema.into());
    body.insert("strict".into(), strict.into());
    body.extend(message.map(|message| ("message".to_owned(), message.into())));
    body.extend(force.map(|reason| ("force".to_owned(), json!({ "reason": reason }))));
    let client = Client::new(&server)?;
    let path = format!("/api/event-types/{}/versions", of.id(&client).await?);
    let written = match replace {
        true => client.put(&format!("{path}/{}", path_part(&number)), &body).await?,
        false => client.post(&path, &body).await?,
    };
    said(&written, &server, &format!("version {} is {}", cell(&written, "version"), cell(&written, "status")))
}

async fn change(NamedVersion { of, number, server }: NamedVersion, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&server)?;
    let path = format!("/api/event-types/{}/versions/{}/{verb}", of.id(&client).await?, path_part(&number));
    let changed = client.post(&path, &json!({})).await?;
    said(&changed, &server, &format!("version {} is {}", cell(&changed, "version"), cell(&changed, "status")))
}

async fn validate(
    server: &ServerArgs,
    of: &NamedType,
    file: &Path,
    version: Option<String>,
    content_type: Option<&str>,
) -> Result<bool, Failure> {
    let client = Client::new(server)?;
    let path = format!("/api/event-types/{}/validate", of.id(&client).await?);
    let query: Vec<(&str, String)> = version.into_iter().map(|version| ("version", version)).collect();
    let found = client.post_bytes(&path, &query, content_type, read(file)?).await?;
    let is_valid = found["valid"] == true;
    if server.json {
        output::json(&found)?;
        return Ok(is_valid);
    }
    if is_valid {
        output::line(&format!("valid by version {}", cell(&found, "version")));
        return Ok(true);
    }
    let total = &found["total"];
    output::line(&format!("not valid by version {}: {total} violations", cell(&found, "version")));
    let row = |violation: &Value| {
        let at = match (&violation["line"], &violation["column"]) {
            (Value::Null, _) => "-".to_owned(),
            (line, column) => format!("{line}:{column}"),
        };
        vec![at, cell(violation, "path"), cell(violation, "message")]
    };
    let rows = found["violations"].as_array().into_iter().flatten().map(row).collect();
    output::table(&["AT", "PATH", "VIOLATION"], rows);
    Ok(false)
}

/// The type of a schema by the name of its file.
fn by_name(file: &Path) -> Result<&'static str, Failure> {
    let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    match ending.as_str() {
        "json" => Ok("JSON_SCHEMA"),
        "proto" => Ok("PROTO"),
        "xsd" => Ok("XSD"),
        _ => Err(format!("the name {} does not tell the schema's type: pass --schema-type", file.display()).into()),
    }
}
