//! `tidegate accounts`: service accounts. Tokens and passwords come from a variable, a file or standard input, never from the
//! command line, which others on the machine can read.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArgs, all, path_part};
use crate::failure::Failure;
use crate::files;
use crate::output::{self, cell, shown};

/// The variable that a token or a password is read from.
const VARIABLE: &str = "TIDEGATE_ACCOUNT_SECRET";

#[derive(Debug, Args)]
pub(crate) struct AccountsArgs {
    #[command(subcommand)]
    command: AccountsCommand,
}

#[derive(Debug, Subcommand)]
enum AccountsCommand {
    /// List service accounts.
    List {
        /// Only those of this client.
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show a service account, without its secrets.
    Show(Named),
    /// Create a service account. Its signing secret is shown this once.
    Create {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        said: Said,
    },
    /// Change a service account. What is not said stays, also its token or password.
    Change {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        said: Said,
    },
    /// Give a service account a new signing secret, which is shown this once.
    Rotate {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        how: Rotation,
    },
    /// Delete a service account that neither a subscription names nor a dispatch job that has not ended.
    Delete(Named),
}

/// A service account by its code or its id.
#[derive(Debug, Args)]
struct Named {
    /// Code or id of the service account.
    #[arg(value_name = "ACCOUNT")]
    named: String,
    /// The client that it belongs to.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is said about a service account. The token or the password is read from TIDEGATE_ACCOUNT_SECRET if that is set.
#[derive(Debug, Args)]
struct Said {
    /// A name for people; the code if absent.
    #[arg(long)]
    name: Option<String>,
    /// What receivers know it by besides signatures.
    #[arg(long, value_enum)]
    auth: Option<Auth>,
    /// The user name, with basic.
    #[arg(long)]
    username: Option<String>,
    /// A file with the token or the password; - for standard input.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Auth {
    None,
    Bearer,
    Basic,
}

/// How a signing secret is replaced.
#[derive(Debug, Args)]
pub(crate) struct Rotation {
    /// Seconds for which the secrets before it sign as well; a day by default, 0 ends them at once.
    #[arg(long, value_name = "SECONDS")]
    overlap: Option<u64>,
    /// v1 (a secret that both sides have) or v1a (a public key for the receiver); as before by default.
    #[arg(long, value_parser = ["v1", "v1a"])]
    scheme: Option<String>,
}

pub(crate) async fn run(args: AccountsArgs) -> Result<(), Failure> {
    match args.command {
        AccountsCommand::List { client, server } => list(client, &server).await,
        AccountsCommand::Show(of) => {
            let found = of.find(&Client::new(&of.server)?).await?;
            if of.server.json { output::json(&found) } else { show(&found) }
        }
        AccountsCommand::Create { of, said } => create(&of, said).await,
        AccountsCommand::Change { of, said } => change(&of, said).await,
        AccountsCommand::Rotate { of, how } => {
            let client = Client::new(&of.server)?;
            how.run(&client, &of.path(&client).await?, &of.server).await
        }
        AccountsCommand::Delete(of) => {
            let client = Client::new(&of.server)?;
            client.delete(&of.path(&client).await?).await?;
            output::line(&shown(&format!("{} is deleted", of.named)));
            Ok(())
        }
    }
}

impl Rotation {
    /// Rotates the secret of what is at a path, and shows the new one.
    pub(crate) async fn run(&self, client: &Client, path: &str, server: &ServerArgs) -> Result<(), Failure> {
        let mut body = Map::new();
        body.extend(self.overlap.map(|seconds| ("overlapSeconds".to_owned(), json!(seconds))));
        body.extend(self.scheme.as_ref().map(|scheme| ("scheme".to_owned(), json!(scheme))));
        let answer = client.post(&format!("{path}/rotate-secret"), &body).await?;
        if server.json {
            return output::json(&answer);
        }
        let (what, field) = match answer["publicKey"].is_string() {
            true => ("the public key for its receiver", "publicKey"),
            false => ("its new signing secret: store it now, it is not shown again", "signingSecret"),
        };
        output::line(&cell(&answer, field));
        match answer["othersValidUntil"].as_str() {
            Some(until) => eprintln!("above is {what}; those before it sign as well until {until}"),
            None => eprintln!("above is {what}; those before it do not sign any more"),
        }
        Ok(())
    }
}

impl Named {
    async fn find(&self, client: &Client) -> Result<Value, Failure> {
        let query: Vec<_> = self.client.iter().map(|id| ("clientId", id.clone())).collect();
        let found = all(client, "/api/service-accounts", &query).await?;
        let mut named = found.into_iter().filter(|one| one["code"] == self.named.as_str());
        match (named.next(), named.next()) {
            (Some(found), None) => Ok(found),
            (Some(_), Some(_)) => {
                let code = shown(&self.named);
                Err(format!("several clients have a service account {code}: name one with --client").into())
            }
            (None, _) => client.get(&format!("/api/service-accounts/{}", path_part(&self.named)), &[]).await,
        }
    }

    async fn path(&self, client: &Client) -> Result<String, Failure> {
        Ok(format!("/api/service-accounts/{}", cell(&self.find(client).await?, "id")))
    }
}

impl Said {
    /// The body of a request, where `known` is what is there.
    fn body(&self, code: &str, known: Option<&Value>) -> Result<Map<String, Value>, Failure> {
        let secret = secret(self.secret_file.as_deref())?;
        let auth = match (self.auth, known.and_then(|known| known["authType"].as_str())) {
            (Some(Auth::None), _) => "NONE",
            (Some(Auth::Bearer), _) => "BEARER",
            (Some(Auth::Basic), _) => "BASIC",
            (None, Some(known)) => known,
            (None, None) => "NONE",
        };
        let name = self.name.clone().or_else(|| Some(known?["name"].as_str()?.to_owned()));
        let mut body = Map::new();
        body.insert("name".into(), name.unwrap_or_else(|| code.to_owned()).into());
        body.insert("authType".into(), auth.into());
        let username = self.username.clone().or_else(|| Some(known?["username"].as_str()?.to_owned()));
        body.extend(username.filter(|_| auth == "BASIC").map(|name| ("username".to_owned(), name.into())));
        let field = if auth == "BASIC" { "password" } else { "token" };
        if auth == "NONE" && secret.is_some() {
            return Err("--auth none takes no token and no password".into());
        }
        body.extend(secret.map(|secret| (field.to_owned(), secret.into())));
        Ok(body)
    }
}

/// A token or a password, from a file, standard input or the variable.
fn secret(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else { return Ok(std::env::var(VARIABLE).ok().filter(|secret| !secret.is_empty())) };
    if file == Path::new("-") && std::io::stdin().is_terminal() {
        eprintln!("type the token or the password, then Enter and Ctrl-D");
    }
    let text = String::from_utf8(files::read(file)?).map_err(|_| format!("{} is not UTF-8", file.display()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

async fn list(of: Option<String>, server: &ServerArgs) -> Result<(), Failure> {
    let query: Vec<_> = of.into_iter().map(|id| ("clientId", id)).collect();
    let found = all(&Client::new(server)?, "/api/service-accounts", &query).await?;
    if server.json {
        return output::json(&found);
    }
    let columns = ["code", "name", "authType", "username", "clientId", "id"];
    let rows = found.iter().map(|one| columns.iter().map(|column| cell(one, column)).collect()).collect();
    output::table(&["CODE", "NAME", "AUTH", "USER", "CLIENT", "ID"], rows);
    Ok(())
}

fn show(found: &Value) -> Result<(), Failure> {
    for (name, value) in found.as_object().into_iter().flatten() {
        let text = cell(&json!({ "value": value }), "value");
        output::line(&shown(&format!("{name:<18} {text}")));
    }
    Ok(())
}

async fn create(of: &Named, said: Said) -> Result<(), Failure> {
    let mut body = said.body(&of.named, None)?;
    body.insert("code".into(), of.named.clone().into());
    body.extend(of.client.as_ref().map(|id| ("clientId".to_owned(), json!(id))));
    let made = Client::new(&of.server)?.post("/api/service-accounts", &body).await?;
    if of.server.json {
        return output::json(&made);
    }
    output::line(&cell(&made, "signingSecret"));
    let (code, id) = (cell(&made, "code"), cell(&made, "id"));
    eprintln!("{}", shown(&format!("{code} is created: {id}; above is its signing secret: store it now")));
    Ok(())
}

async fn change(of: &Named, said: Said) -> Result<(), Failure> {
    let client = Client::new(&of.server)?;
    let found = of.find(&client).await?;
    let body = said.body(&of.named, Some(&found))?;
    let path = format!("/api/service-accounts/{}", cell(&found, "id"));
    let changed = client.put(&path, &body).await?;
    if of.server.json {
        return output::json(&changed);
    }
    output::line(&shown(&format!("{} is changed", cell(&changed, "code"))));
    Ok(())
}
