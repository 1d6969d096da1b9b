//! A server of made-up answers, for what a real one does too rarely.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The status and body of an answer.
pub(crate) type Answer = (u16, String);

/// Answers requests, each on a connection of its own, until the process ends.
pub(crate) struct Stub {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    /// Answers each request by what `answer` makes of its first line, such as `GET /events?limit=10`.
    pub(crate) fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream.unwrap(), &seen, &*answer));
            }
        });
        Self { url, requests }
    }

    /// The first lines of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A request: its head, from the first line on, and its body. `None` when the caller is gone.
pub(crate) fn read_request(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some((head, body))
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<String>>, answer: &dyn Fn(&str) -> Answer) {
    let Some((head, _)) = read_request(&stream) else { return };
    let first = head.lines().next().unwrap_or_default();
    let request = first.trim().trim_end_matches(" HTTP/1.1").to_owned();
    let (status, body) = answer(&request);
    seen.lock().unwrap().push(request);
    let head = format!("HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\nconnection: close\r\n");
    // The caller may be gone: a worker that was stopped.
    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
}
