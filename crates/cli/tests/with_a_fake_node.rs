//! The program against a node that is none: what it asks for, what it prints, how it ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// What a request is answered with: `METHOD PATH`, status, body.
type Answer = (&'static str, u16, &'static str);
type Answers = BTreeMap<&'static str, (u16, &'static str)>;

const SANDBOX: &str = r#"{"id":"sbx-0123456789abcdef","name":"box","state":"running","owner":"o","labels":{"k":"v"},
    "template":"base","vcpus":1,"memory_mib":512,"env":{},"secret_names":[],"created_at_ms":1,
    "active_at_ms":1,"timeout_s":0,"idle_timeout_s":0,"on_timeout":"kill","cpu_weight":100,
    "cpu_quota_percent":0,"pids_max":0}"#;
const PAUSED: &str = r#"{"id":"sbx-0123456789abcdef","name":"box","state":"paused","owner":"o","labels":{},
    "template":"base","vcpus":1,"memory_mib":512,"env":{},"secret_names":[],"created_at_ms":1,
    "active_at_ms":1,"timeout_s":0,"idle_timeout_s":0,"on_timeout":"kill","cpu_weight":100,
    "cpu_quota_percent":0,"pids_max":0,
    "stored":{"state":"00ff","logical_bytes":4194304,"written_bytes":2097152,"stored_at_ms":9,"warm":false}}"#;
const COMMIT: &str = r#"{"id":"cm-0123456789abcdef","state":"durable","owner":"o","author":"ann","labels":{},
    "message":"tests pass","ancestors":[],"sandbox":"sbx-1","sandbox_name":"box","template":"base","vcpus":1,
    "memory_mib":512,"disk_mib":4096,"created_at_ms":1000,"kept_us":1200,"refs":[],
    "stored":{"state":"00ff","logical_bytes":4194304,"written_bytes":2097152,"stored_at_ms":2500,"warm":false}}"#;
const WRITING: &str = r#"{"id":"cm-0123456789abcdef","state":"writing","owner":"o","author":"ann","labels":{},
    "ancestors":[],"sandbox":"sbx-1","sandbox_name":"box","template":"base","vcpus":1,
    "memory_mib":512,"disk_mib":4096,"created_at_ms":1000,"kept_us":1200,"refs":[]}"#;
const VOLUME: &str = r#"{"id":"vol-0123456789abcdef","name":"data","owner":"o","size_mib":2048,"stored_bytes":1048576,
    "created_at_ms":1,"used_by":[{"sandbox":"sbx-1","sandbox_name":"box","path":"/mnt","mode":"read_write"}]}"#;
const VOLUMES: &str = r#"{"volumes":[{"id":"vol-0123456789abcdef","name":"data","owner":"o","size_mib":2048,
    "stored_bytes":1048576,"created_at_ms":1,"used_by":[]}]}"#;
const ATTACHED: &str = r#"{"id":"sbx-0123456789abcdef","name":"box","state":"running","owner":"o","labels":{},
    "template":"base","vcpus":1,"memory_mib":512,"env":{},"secret_names":[],"created_at_ms":1,
    "active_at_ms":1,"timeout_s":0,"idle_timeout_s":0,"on_timeout":"kill","cpu_weight":100,
    "cpu_quota_percent":0,"pids_max":0,
    "volumes":[{"volume":"data","volume_id":"vol-0123456789abcdef","path":"/mnt","mode":"snapshot"}]}"#;
const REFS: &str = r#"{"refs":[{"name":"main","kind":"branch","commit":"cm-1","updated_at_ms":1},
    {"name":"v1","kind":"tag","commit":"cm-2","updated_at_ms":1}]}"#;
const NAMED: &str =
    r#"{"name":"v2","kind":"tag","commit":"cm-0123456789abcdef","updated_at_ms":1}"#;

/// What was asked, and what came of it.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
    /// `METHOD PATH BODY`.
    asked: Vec<String>,
}

/// Runs the program against a node that knows these answers and nothing else.
fn ramet(answers: &[Answer], arguments: &[&str]) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers: Answers =
        answers.iter().map(|(request, status, body)| (*request, (*status, *body))).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    // Ends with the test: nobody connects any more.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream, &answers, &heard);
        }
    });
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ramet"))
        .args(arguments)
        .env("RAMET_HOME", home.path())
        .env("RAMET_URL", url)
        .env("RAMET_TOKEN", "ramet_x")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        asked: asked.lock().unwrap().clone(),
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, answers: &Answers, heard: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let request = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut length = 0;
    while line.trim_end() != "" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    heard.lock().unwrap().push(format!("{request} {body}").trim_end().to_owned());
    let unknown = r#"{"type":"about:blank","title":"t","status":404,"code":"not_found","detail":"there is no commit \"x\""}"#;
    let (status, answer) = answers.get(request.as_str()).copied().unwrap_or((404, unknown));
    let kind = if status < 400 { "application/json" } else { "application/problem+json" };
    let length = answer.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
    )
    .unwrap();
}

#[test]
fn pause_goes_into_the_store_or_stays_in_memory() {
    let answers = [("POST /v1/sandboxes/box/pause", 200, PAUSED)];
    let ran = ramet(&answers, &["pause", "box"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("box paused  in store, 2.0 MiB written of 4.0 MiB, took "));
    assert_eq!(ran.asked, [r#"POST /v1/sandboxes/box/pause {"memory":false}"#]);
    let ran = ramet(&answers, &["pause", "--memory", "box", "--json"]);
    assert_eq!(ran.asked, [r#"POST /v1/sandboxes/box/pause {"memory":true}"#]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json[0]["state"], json[0]["took_us"].is_u64()), (&"paused".into(), true));
}

#[test]
fn what_was_done_before_a_failure_is_told() {
    let answers = [("POST /v1/sandboxes/box/resume", 200, SANDBOX)];
    let ran = ramet(&answers, &["resume", "box", "nobody", "never-asked"]);
    assert_eq!((ran.code, ran.asked.len()), (Some(3), 2));
    assert!(ran.out.starts_with("box running  took "), "{}", ran.out);
}

#[test]
fn a_commit_is_kept_and_does_not_wait() {
    let answers = [("POST /v1/sandboxes/box/commits", 202, WRITING)];
    let ran = ramet(&answers, &["commit", "box", "-m", "tests pass", "--branch", "main"]);
    assert_eq!(ran.out, "cm-0123456789abcdef  kept after 1.2 ms, being written\n");
    let body = r#"{"message":"tests pass","branch":"main","wait":false}"#;
    assert_eq!(ran.asked, [format!("POST /v1/sandboxes/box/commits {body}")]);
}

#[test]
fn a_tagged_commit_is_durable_and_its_tag_is_free() {
    let answers = [
        ("GET /v1/refs", 200, REFS),
        ("POST /v1/sandboxes/box/commits", 201, COMMIT),
        ("PUT /v1/refs/v2", 200, NAMED),
    ];
    let ran = ramet(&answers, &["commit", "box", "--tag", "v2"]);
    let told = "kept after 1.2 ms, 2.0 MiB written of 4.0 MiB, durable after 1.5 s";
    assert_eq!(ran.out, format!("cm-0123456789abcdef (v2)  {told}\n"));
    let put = r#"PUT /v1/refs/v2 {"commit":"cm-0123456789abcdef","kind":"tag","force":false}"#;
    assert_eq!(ran.asked[2], put);
    let ran = ramet(&answers, &["commit", "box", "--tag", "v1"]);
    assert_eq!((ran.code, ran.asked.len()), (Some(5), 1), "no commit is made for it");
    assert!(ran.err.contains("v1 points to cm-2 already"), "{}", ran.err);
}

#[test]
fn a_commit_that_failed_is_a_failure() {
    let failed: &str = WRITING
        .replace(r#""state":"writing""#, r#""state":"failed","failure":"the disk is full""#)
        .leak();
    let ran =
        ramet(&[("POST /v1/sandboxes/box/commits", 201, failed)], &["commit", "box", "--wait"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("could not be written: the disk is full"), "{}", ran.err);
}

#[test]
fn the_log_is_asked_for_as_it_is_wanted() {
    let list: &str = format!(r#"{{"commits":[{COMMIT}],"next_cursor":"2"}}"#).leak();
    let answers = [("GET /v1/commits?of=box&label=run&limit=1", 200, list)];
    let ran = ramet(&answers, &["log", "box", "--label", "run", "-n", "1", "--oneline"]);
    assert_eq!(ran.out, "cm-0123456789abcdef tests pass\n", "{}", ran.err);
    let ran = ramet(&answers, &["log", "box", "--label", "run", "-n", "1", "-q"]);
    assert_eq!(ran.out, "cm-0123456789abcdef\n");
    let none = [("GET /v1/commits?limit=1000", 200, r#"{"commits":[]}"#)];
    assert!(ramet(&none, &["log"]).out.contains("ramet commit"));
    assert_eq!(ramet(&none, &["log", "-q"]).out, "");
    assert_eq!(ramet(&none, &["log", "--json"]).out, "[]\n");
}

#[test]
fn a_commit_that_is_not_there_is_3_and_says_where_they_are() {
    let ran = ramet(&[], &["show", "x"]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.err.contains("ramet log"), "{}", ran.err);
}

#[test]
fn a_checkout_says_whether_it_was_warm() {
    let created: &str =
        format!(r#"{{"sandbox":{SANDBOX},"entered_us":1,"ready_us":2,"total_us":3000}}"#).leak();
    let answers = [("GET /v1/commits/main", 200, COMMIT), ("POST /v1/sandboxes", 201, created)];
    let ran = ramet(&answers, &["checkout", "main", "box", "--label", "a=b", "--auto-resume"]);
    let expected = "box  sbx-0123456789abcdef  ready after 3.0 ms from cm-0123456789abcdef, cold\n";
    assert_eq!(ran.out, expected, "{}", ran.err);
    for part in [r#""commit":"cm-0123456789abcdef""#, r#""a":"b""#, r#""auto_resume":true"#] {
        assert!(ran.asked[1].contains(part), "{}", ran.asked[1]);
    }
    let json: serde_json::Value =
        serde_json::from_str(&ramet(&answers, &["checkout", "main", "--json"]).out).unwrap();
    assert_eq!((&json["warm"], &json["sandbox"]["name"]), (&false.into(), &"box".into()));
}

#[test]
fn names_are_made_moved_and_deleted_each_by_its_command() {
    let taken = r#"{"type":"about:blank","title":"t","status":409,"code":"already_exists","detail":"v2 points elsewhere"}"#;
    let ran = ramet(&[("PUT /v1/refs/v2", 409, taken)], &["tag", "v2", "main"]);
    assert_eq!(ran.code, Some(5));
    assert!(ran.err.contains("--force"), "{}", ran.err);
    let ran = ramet(&[("PUT /v1/refs/v2", 200, NAMED)], &["branch", "-f", "v2", "main"]);
    assert_eq!(ran.asked, [r#"PUT /v1/refs/v2 {"commit":"main","kind":"branch","force":true}"#]);
    let answers = [("GET /v1/refs", 200, REFS), ("DELETE /v1/refs/main", 204, "")];
    let ran = ramet(&answers, &["tag", "--delete", "v1", "main"]);
    assert_eq!((ran.code, ran.asked.len()), (Some(5), 1), "nothing is deleted");
    assert!(ran.err.contains("ramet branch --delete main"), "{}", ran.err);
    let ran = ramet(&answers, &["branch", "--delete", "main"]);
    assert_eq!((ran.code, ran.asked[1].as_str()), (Some(0), "DELETE /v1/refs/main"));
    assert!(ramet(&answers, &["tag"]).out.contains("v1    cm-2"));
}

#[test]
fn a_commit_with_a_name_is_not_deleted() {
    let used = r#"{"type":"about:blank","title":"t","status":409,"code":"in_use","detail":"main points to it"}"#;
    let answers = [("DELETE /v1/commits/cm-1", 204, ""), ("DELETE /v1/commits/cm-2", 409, used)];
    let ran = ramet(&answers, &["uncommit", "cm-1", "cm-2"]);
    assert_eq!((ran.code, ran.asked.len()), (Some(5), 2));
    assert!(ran.err.contains("ramet branch --delete"), "{}", ran.err);
    assert_eq!(ramet(&answers, &["uncommit", "cm-1"]).code, Some(0));
}

#[test]
fn damage_that_stays_is_1() {
    let report = r#"{"checked":3,"damage":["chunk 00 of cm-1 is missing"],"repaired":0}"#;
    let answers = [("POST /v1/store/check", 200, report)];
    let ran = ramet(&answers, &["store", "check", "--deep", "--repair"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.asked, [r#"POST /v1/store/check {"deep":true,"repair":true}"#]);
    assert!(ran.out.starts_with("damaged: chunk 00 of cm-1 is missing\n"), "{}", ran.out);
    let whole = r#"{"checked":3,"damage":[],"repaired":0}"#;
    assert_eq!(ramet(&[("POST /v1/store/check", 200, whole)], &["store", "check"]).code, Some(0));
}

#[test]
fn the_store_is_counted_and_cleaned() {
    let usage = r#"{"location":"file:///s","commits":1,"paused":2,"logical_bytes":30,"stored_bytes":10,"cache_bytes":5}"#;
    let ran = ramet(&[("GET /v1/store", 200, usage)], &["store"]);
    assert!(ran.out.contains("stored           10 B, 3.0 times less\n"), "{}", ran.out);
    let report = r#"{"kept":1,"condemned":2,"removed":3,"removed_bytes":4}"#;
    let ran = ramet(&[("POST /v1/store/gc", 200, report)], &["gc", "--dry-run"]);
    assert_eq!(ran.asked, [r#"POST /v1/store/gc {"dry_run":true}"#]);
    assert!(ran.out.starts_with("3 objects would be removed, 4 B;"), "{}", ran.out);
}

#[test]
fn settings_of_a_living_sandbox_change() {
    let answers = [
        ("GET /v1/sandboxes/box", 200, SANDBOX),
        ("PATCH /v1/sandboxes/sbx-0123456789abcdef", 200, SANDBOX),
    ];
    let ran = ramet(&answers, &["set", "box", "--auto-resume", "on", "--label", "a=b"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let body = r#"{"labels":{"a":"b","k":"v"},"auto_resume":true}"#;
    assert_eq!(ran.asked[1], format!("PATCH /v1/sandboxes/sbx-0123456789abcdef {body}"));
    assert!(ran.out.contains("auto-resume "), "{}", ran.out);
}

#[test]
fn the_tree_and_the_list_say_where_a_paused_sandbox_is() {
    let list: &str = format!(r#"{{"sandboxes":[{PAUSED}]}}"#).leak();
    let tree = r#"{"nodes":[{"id":"sbx-0123456789abcdef","kind":"sandbox","name":"box","state":"paused","created_at_ms":1}]}"#;
    let answers = [("GET /v1/sandboxes?limit=1000", 200, list), ("GET /v1/tree", 200, tree)];
    let drawn = ramet(&answers, &["tree"]).out;
    let expected = "box paused in store, cold, 2.0 MiB sbx-0123456789abcdef ";
    assert!(drawn.starts_with(expected), "{drawn}");
    let listed = ramet(&answers, &["ls"]).out;
    assert!(listed.contains("paused in store, cold, 2.0 MiB"), "{listed}");
    let ran = ramet(&answers, &["tree", "--json"]);
    assert_eq!(ran.asked, ["GET /v1/tree"], "programs get what the node says");
}

#[test]
fn volumes_are_made_shown_and_given() {
    let made =
        ramet(&[("POST /v1/volumes", 201, VOLUME)], &["volume", "create", "data", "--size", "2G"]);
    assert_eq!(made.asked, [r#"POST /v1/volumes {"name":"data","size_mib":2048}"#]);
    assert!(made.code == Some(0) && made.out.contains("GiB"), "{}", made.out);
    let list = ramet(&[("GET /v1/volumes", 200, VOLUMES)], &["volume", "ls"]);
    assert!(list.out.contains("data") && list.out.contains("MiB"), "{}", list.out);
    let shown = ramet(&[("GET /v1/volumes/data", 200, VOLUME)], &["volume", "inspect", "data"]);
    assert!(shown.out.contains("box at /mnt, read-write"), "{}", shown.out);
    let attach = ["volume", "attach", "box", "data:/mnt:ro"];
    let given = ramet(&[("POST /v1/sandboxes/box/volumes", 200, ATTACHED)], &attach);
    let body = r#"{"volume":"data","path":"/mnt","read_only":true}"#;
    assert_eq!(given.asked, [format!("POST /v1/sandboxes/box/volumes {body}")]);
    assert!(given.out.contains("snapshot"), "{}", given.out);
    let detach = ["volume", "detach", "box", "data"];
    let taken = ramet(&[("DELETE /v1/sandboxes/box/volumes/data", 200, SANDBOX)], &detach);
    assert_eq!((taken.code, taken.out.as_str()), (Some(0), ""));
    let wrong = ramet(&[], &["volume", "attach", "box", "data"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("VOLUME:PATH"), "{}", wrong.err);
}

const NETWORK: &str = r#"{"connected":true,"layers":[{"from":"token","allow":[{"to":"*.example.org","ports":[],"protocols":[]}]},
    {"from":"own","egress":"open","allow":[{"to":"*","ports":[{"first":443,"last":443}],"protocols":["tcp"]}]}],
    "limits":{"bytes_per_s":1048576,"packets_per_s":0,"connections":0},
    "edge":[{"host":"api.example.org","header":"Authorization","value":"Bearer {secret:KEY}"}],
    "stats":{"sent_bytes":2048,"received_bytes":0,"sent_frames":1,"received_frames":0,"connections":3,"connections_now":1,
    "refused":7,"dropped":0}}"#;

#[test]
fn what_is_reached_is_said_and_shown() {
    let answers = [
        ("PUT /v1/sandboxes/box/network", 200, NETWORK),
        ("GET /v1/sandboxes/box/network", 200, NETWORK),
        (
            "GET /v1/sandboxes/box/network/log?limit=5",
            200,
            r#"{"entries":[{"number":4,"at_ms":1000,"verdict":"refused","kind":"tcp","to":"192.0.2.1:443","reason":"not_allowed","count":9}]}"#,
        ),
    ];
    let ran = ramet(&answers, &["net", "show", "box"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for text in
        ["*.example.org", "*:443/tcp", "1.0 MiB", "Bearer {secret:KEY}", "3 connections, 1 open"]
    {
        assert!(ran.out.contains(text), "{text}: {}", ran.out);
    }
    let set = [
        "net",
        "set",
        "box",
        "--allow",
        "a.org:443/tcp",
        "--limit-connections",
        "9",
        "--edge",
        "a.org:X-Key={secret:K}",
    ];
    let ran = ramet(&answers, &set);
    assert_eq!(
        ran.asked,
        [
            r#"PUT /v1/sandboxes/box/network {"allow":[{"to":"a.org","ports":[{"first":443,"last":443}],"protocols":["tcp"]}],"limits":{"bytes_per_s":0,"packets_per_s":0,"connections":9},"edge":[{"host":"a.org","header":"X-Key","value":"{secret:K}"}]}"#
        ]
    );
    let ran = ramet(&answers, &["net", "log", "box", "-n", "5"]);
    assert!(ran.out.contains("192.0.2.1:443") && ran.out.contains("not_allowed"), "{}", ran.out);
    for wrong in [&["net", "set", "box"][..], &["net", "set", "box", "--allow", "a b"]] {
        let ran = ramet(&answers, wrong);
        assert_eq!((ran.code, ran.asked.len()), (Some(2), 0), "{}", ran.err);
    }
}

#[test]
fn a_fork_of_what_holds_secrets_is_explained() {
    let problem = r#"{"type":"about:blank","title":"t","status":409,"code":"holds_secrets","detail":"the sandbox box holds secrets (KEY)"}"#;
    let answers = [("POST /v1/sandboxes/box/fork", 409, problem)];
    let ran = ramet(&answers, &["fork", "box"]);
    assert_eq!(ran.code, Some(5));
    assert!(
        ran.err.contains("--inherit-secrets") && ran.err.contains("--drop-secrets"),
        "{}",
        ran.err
    );
    let ran =
        ramet(&answers, &["fork", "box", "--drop-secrets", "--egress", "none", "--keep-edge"]);
    assert!(
        ran.asked[0]
            .contains(r#""inherit_secrets":false,"network":{"egress":"none"},"keep_edge":true"#),
        "{:?}",
        ran.asked
    );
    let ran = ramet(&answers, &["fork", "box", "--drop-secrets", "--inherit-secrets"]);
    assert_eq!(ran.code, Some(2));
}

#[test]
fn links_secrets_and_tokens() {
    let answers = [
        (
            "POST /v1/sandboxes/box/links",
            201,
            r#"{"id":"ln-1","sandbox":"sbx-1","port":8000,"public":false,"created_at_ms":1,"expires_at_ms":3600001,"path":"/l/abc/"}"#,
        ),
        (
            "GET /v1/secrets",
            200,
            r#"{"secrets":[{"name":"KEY","created_at_ms":1,"updated_at_ms":2,"used_by":["sbx-1"]}]}"#,
        ),
        (
            "POST /v1/tokens",
            201,
            r#"{"token":"ramet_secret","about":{"id":"tok-1","principal":"ann","cap":{"allow":[]},"created_at_ms":1}}"#,
        ),
        (
            "GET /v1/sandboxes/box/tcp/8000/wait?timeout_s=120&path=%2Fhealth",
            200,
            r#"{"port":8000,"status":200,"waited_ms":5}"#,
        ),
    ];
    let ran = ramet(&answers, &["link", "new", "box", "8000", "--expires", "1h"]);
    assert!(
        ran.out.starts_with("http://127.0.0.1:") && ran.out.contains("/l/abc/\n"),
        "{}{}",
        ran.out,
        ran.err
    );
    assert_eq!(
        ran.asked,
        [r#"POST /v1/sandboxes/box/links {"port":8000,"expires_s":3600,"public":false}"#]
    );
    let ran = ramet(&answers, &["secret", "ls"]);
    assert!(ran.out.contains("KEY") && ran.out.contains("sbx-1"), "{}", ran.out);
    // Standard input is empty.
    let ran = ramet(&answers, &["secret", "set", "KEY"]);
    assert_eq!((ran.code, ran.asked.len()), (Some(2), 0));
    let ran = ramet(&answers, &["token", "new", "--principal", "ann", "--egress", "none"]);
    assert_eq!(ran.out, "ramet_secret\n");
    assert_eq!(ran.asked, [r#"POST /v1/tokens {"principal":"ann","egress":"none"}"#]);
    let ran =
        ramet(&answers, &["ports", "wait", "box", "8000", "--path", "/health", "--timeout", "2m"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
}

#[test]
fn code_is_sent_and_what_comes_of_it_is_shown() {
    const EVENTS: &str = concat!(
        r#"{"type":"started","count":1}"#,
        "\n",
        r#"{"type":"stdout","text":"hello\n","timestamp_ns":1}"#,
        "\n",
        r#"{"type":"result","main":false,"text":"<Figure>","png":"aGk="}"#,
        "\n",
        r#"{"type":"result","main":true,"text":"42"}"#,
        "\n",
        r#"{"type":"error","name":"E","value":"v","traceback":"\u001b[31mE\u001b[0m: v"}"#,
        "\n",
        r#"{"type":"end"}"#,
        "\n"
    );
    let plots = tempfile::tempdir().unwrap();
    let save = plots.path().to_str().unwrap();
    let answers = [("POST /v1/sandboxes/box/code", 200, EVENTS)];
    let ran = ramet(&answers, &["code", "box", "-l", "js", "-c", "6 * 7", "--save", save]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "hello\n<Figure>\n42\n"), "{}", ran.err);
    assert!(ran.err.contains("E: v\n"), "{}", ran.err);
    assert_eq!(std::fs::read(plots.path().join("result-1.png")).unwrap(), b"hi");
    let asked = r#"POST /v1/sandboxes/box/code {"code":"6 * 7","language":"js"}"#;
    assert_eq!(ran.asked, [asked]);
    let ran = ramet(&answers, &["code", "box", "-c", "1", "--json"]);
    assert_eq!(ran.out, EVENTS);
}
