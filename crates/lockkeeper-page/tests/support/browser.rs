//! A real Chromium, driven over WebDriver. Whatever happens, it ends with the test that started it.

#![allow(dead_code)] // Each test program uses its part.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

/// A browser with one window.
pub struct Browser {
    runtime: tokio::runtime::Runtime,
    client: Client,
    driver: Driver,
}

/// The process that drives it.
struct Driver {
    process: Child,
    port: u16,
    session: Option<String>,
    /// Chromium's own files.
    profile: tempfile::TempDir,
}

impl Browser {
    /// Starts one; the packages chromium and chromium-driver must be there.
    pub fn start() -> Browser {
        let mut driver = Driver::start();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let profile = format!("--user-data-dir={}", driver.profile.path().display());
        let arguments = [
            "--headless=new",
            // Chromium's own sandbox does not work for root.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &profile,
        ];
        let wanted = json!({
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = wanted.as_object().expect("an object").clone();
        let address = format!("http://127.0.0.1:{}", driver.port);
        let client = runtime
            .block_on(
                ClientBuilder::new(HttpConnector::new())
                    .capabilities(wanted)
                    .connect(&address),
            )
            .expect("a session with Chromium");
        driver.session = runtime.block_on(client.session_id()).expect("a session id");
        Browser {
            runtime,
            client,
            driver,
        }
    }

    /// Goes to an address.
    pub fn open(&self, address: &str) {
        self.runtime
            .block_on(self.client.goto(address))
            .expect("goes there");
    }

    /// Loads the page anew.
    pub fn reload(&self) {
        self.runtime
            .block_on(self.client.refresh())
            .expect("loads again");
    }

    /// What an expression is on the page.
    pub fn ask(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.runtime
            .block_on(self.client.execute(&script, Vec::new()))
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Does something on the page.
    pub fn act(&self, script: &str) {
        self.runtime
            .block_on(self.client.execute(script, Vec::new()))
            .unwrap_or_else(|error| panic!("{script}: {error}"));
    }

    /// Presses keys as a user does, wherever the focus is.
    pub fn keys(&self, keys: &str) {
        self.runtime
            .block_on(async { self.client.active_element().await?.send_keys(keys).await })
            .expect("takes keys");
    }

    /// Waits until an expression is as it should be, for at most 30 seconds.
    pub fn until(&self, expression: &str, wanted: &Value) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let is = self.ask(expression);
            if is == *wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{expression}\n  is     {is}\n  not    {wanted}\n  page   {}",
                self.ask("document.body.innerText.slice(0, 3000)")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the page so much room, whatever frame the window has.
    #[allow(dead_code, reason = "of two programs of tests one looks at widths")]
    pub fn resize(&self, width: u32, height: u32) {
        self.runtime
            .block_on(self.client.set_window_size(width, height))
            .expect("resizes");
    }

    /// What the browser complained of since the last time.
    pub fn complaints(&self) -> Vec<String> {
        let session = self.driver.session.as_deref().unwrap_or_default();
        let body = json!({ "type": "browser" }).to_string();
        let answer = self
            .driver
            .request("POST", &format!("/session/{session}/se/log"), &body)
            .expect("the log");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let entries = answer["value"].as_array().expect("entries");
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }
}

impl Driver {
    fn start() -> Driver {
        let profile = tempfile::Builder::new()
            .prefix("lockkeeper-chromium-")
            .tempdir()
            .expect("temp folder");
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver, of the package chromium-driver");
        let mut said = BufReader::new(process.stdout.take().expect("its output"));
        let mut text = String::new();
        let port = loop {
            let mut line = String::new();
            if said.read_line(&mut line).unwrap_or(0) == 0 {
                let _ = process.kill();
                let _ = process.wait();
                panic!("chromedriver does not start: {text}");
            }
            let port = line
                .split_once("started successfully on port ")
                .and_then(|(_, rest)| rest.trim_end().trim_end_matches('.').parse().ok());
            if let Some(port) = port {
                break port;
            }
            text += &line;
        };
        // It must not meet a closed pipe.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Driver {
            process,
            port,
            session: None,
            profile,
        }
    }

    fn request(&self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        // It keeps the connection open, whatever is said.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Chromium ends with its session, also when a test has failed and nothing is awaited any more.
        if let Some(session) = &self.session {
            let _ = self.request("DELETE", &format!("/session/{session}"), "");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
