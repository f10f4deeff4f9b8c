//! A real Chromium, driven over the DevTools protocol:
//! <https://chromedevtools.github.io/devtools-protocol/>.

// The benchmark includes this module too, and uses a part of it.
#![allow(dead_code)]

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::{Message, protocol::WebSocketConfig};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Folder, Part, program};

/// A machine that also compiles is slow.
const TIMEOUT: Duration = Duration::from_secs(180);

pub struct Browser {
    _process: Child,
    _profile: Folder,
    endpoint: String,
}

impl Browser {
    pub async fn start() -> Self {
        let chromium = program(Part::Chromium, "chromium").unwrap_or_else(|error| panic!("{error}"));
        let profile = Folder::new("chromium");
        let mut process = Command::new(chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("chromium starts");
        let mut lines = BufReader::new(process.stderr.take().expect("its messages")).lines();
        let endpoint = tokio::time::timeout(TIMEOUT, async {
            while let Some(line) = lines.next_line().await.expect("text") {
                if let Some(endpoint) = line.strip_prefix("DevTools listening on ") {
                    return endpoint.to_owned();
                }
            }
            panic!("chromium ended");
        });
        let endpoint = endpoint.await.expect("chromium listens");
        // It must not block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { _process: process, _profile: profile, endpoint }
    }

    /// A new tab in a context of its own: nothing is shared with others.
    pub async fn tab(&self) -> Tab {
        let connection = Connection::open(&self.endpoint).await;
        let context = connection.call(None, "Target.createBrowserContext", json!({})).await;
        let target = json!({"url": "about:blank", "browserContextId": context["browserContextId"]});
        let target = connection.call(None, "Target.createTarget", target).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = connection.call(None, "Target.attachToTarget", attach).await;
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let tab = Tab { connection, session };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        tab.size(1280, 900).await;
        tab
    }
}

type Waiting = Arc<Mutex<std::collections::HashMap<u64, oneshot::Sender<Value>>>>;

struct Connection {
    requests: mpsc::UnboundedSender<String>,
    waiting: Waiting,
    events: Arc<Mutex<Vec<Value>>>,
    next: std::sync::atomic::AtomicU64,
    _task: AbortOnDropHandle<()>,
}

impl Connection {
    async fn open(endpoint: &str) -> Self {
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let connected = tokio_tungstenite::connect_async_with_config(endpoint, Some(config), false).await;
        let (mut socket, _) = connected.expect("a connection");
        let (requests, mut outgoing) = mpsc::unbounded_channel::<String>();
        let (waiting, events) = (Waiting::default(), Arc::<Mutex<Vec<Value>>>::default());
        let (answers, seen) = (Arc::clone(&waiting), Arc::clone(&events));
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(request) = outgoing.recv() => {
                        if socket.send(Message::text(request)).await.is_err() { return }
                    }
                    message = socket.next() => {
                        let Some(Ok(message)) = message else { return };
                        let Ok(text) = message.to_text() else { continue };
                        let Ok(message) = serde_json::from_str::<Value>(text) else { continue };
                        match message["id"].as_u64().and_then(|id| answers.lock().remove(&id)) {
                            Some(answer) => _ = answer.send(message),
                            None => seen.lock().push(message),
                        }
                    }
                }
            }
        });
        Self { requests, waiting, events, next: 1.into(), _task: AbortOnDropHandle::new(task) }
    }

    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut request = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            request["sessionId"] = session.into();
        }
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        self.requests.send(request.to_string()).expect("a connection");
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        let mut answer = answer.unwrap_or_else(|_| panic!("{method} is not answered")).expect("an answer");
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].take()
    }
}

pub struct Tab {
    connection: Connection,
    session: String,
}

impl Tab {
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.connection.call(Some(&self.session), method, params).await
    }

    pub async fn size(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    pub async fn dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    pub async fn open(&self, url: &str) {
        self.call("Page.navigate", json!({ "url": url })).await;
    }

    /// The value of an expression; promises are awaited.
    pub async fn eval(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    pub async fn text(&self) -> String {
        let text = self.eval("document.body?.innerText ?? ''").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    pub async fn until(&self, expression: &str) {
        let began = Instant::now();
        while self.eval(&format!("Boolean({expression})")).await != true {
            if began.elapsed() > TIMEOUT {
                panic!("never: {expression}\n{}\n{:?}", self.text().await, self.complaints());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the page shows a text.
    pub async fn shows(&self, text: &str) {
        self.until(&format!("document.body?.innerText.includes({})", json!(text))).await;
    }

    /// Clicks in the middle of the first visible element with this text, as a person does.
    pub async fn click(&self, selector: &str, text: &str) {
        let find = format!(
            "[...document.querySelectorAll({})].find((one) => one.offsetParent && one.textContent.includes({}))",
            json!(selector),
            json!(text)
        );
        self.until(&find).await;
        let place = format!(
            "(() => {{ const one = {find}; one.scrollIntoView({{block: 'center'}}); const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        );
        let place = self.eval(&place).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    pub async fn key(&self, key: &str) {
        let text = if key.chars().count() == 1 {
            key
        } else if key == "Enter" {
            "\r"
        } else {
            ""
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            down["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", down).await;
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", up).await;
    }

    pub async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// Errors of the console, exceptions, and violations of the content security policy.
    pub fn complaints(&self) -> Vec<String> {
        let events = self.connection.events.lock();
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" if params["type"] == "error" => Some(params["args"].to_string()),
                "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"].to_string()),
                _ => None,
            }
        };
        events.iter().filter_map(complaint).collect()
    }

    /// Every address that was requested.
    pub fn requested(&self) -> Vec<String> {
        let events = self.connection.events.lock();
        let sent = events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// Rules of axe-core with serious findings, and the elements.
    pub async fn axe(&self) -> Vec<String> {
        let source = program(Part::AxeCore, "axe.min.js").unwrap_or_else(|error| panic!("{error}"));
        let source = std::fs::read_to_string(source).expect("axe-core");
        // Not as a script of the page: its policy forbids that.
        self.eval(&format!("{source}; true")).await;
        let found = self
            .eval("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
            .await;
        let serious = |finding: &&Value| finding["impact"] == "serious" || finding["impact"] == "critical";
        let text = |finding: &Value| {
            let nodes: Vec<&str> = finding["nodes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|node| node["html"].as_str())
                .take(4)
                .collect();
            format!(
                "{}: {}: {nodes:?} {}",
                finding["id"], finding["help"], finding["nodes"][0]["failureSummary"]
            )
        };
        found.as_array().expect("findings").iter().filter(serious).map(text).collect()
    }

    /// A screenshot as JPEG or PNG, by the name's end; of the whole page.
    pub async fn screenshot(&self, path: &std::path::Path) {
        let format = if path.extension().is_some_and(|end| end == "png") { "png" } else { "webp" };
        let params = json!({"format": format, "quality": 60, "captureBeyondViewport": false});
        let shot = self.call("Page.captureScreenshot", params).await;
        let data = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().expect("an image"));
        std::fs::write(path, data.expect("base64")).expect("a file");
    }
}
