// SPDX-License-Identifier: GPL-2.0-only

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use super::super::record::tests::kill;
use super::*;

fn server() -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::listen(dir.path().join("metrics").to_str().unwrap()).unwrap();
    (server, dir)
}

fn connect(dir: &tempfile::TempDir) -> UnixStream {
    let stream = UnixStream::connect(dir.path().join("metrics")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn metrics() -> Metrics {
    let mut metrics = Metrics::default();
    metrics.count(&kill("hog"));
    let mut late = kill("late");
    (late.ending, late.reason) = (Ending::Late, Reason::Critical);
    metrics.count(&late);
    metrics.available = 12345;
    metrics
}

#[test]
fn metrics_are_in_the_text_format() {
    let text = metrics().to_string();
    for line in [
        "memreap_kills_total{reason=\"stall\",method=\"mrelease\"} 1",
        "memreap_kills_total{reason=\"critical\",method=\"mrelease\"} 1",
        "memreap_kills_total{reason=\"critical\",method=\"plain\"} 0",
        "memreap_kills_late_total 1",
        "memreap_back_bytes_total 1288490188",
        "memreap_last_kill_seconds 0.041",
        "memreap_last_kill_timestamp_seconds{unit=\"a.scope\",pod=\"\",container=\"\"} 1700000000.123",
        "memreap_available_bytes 12345",
        "memreap_forecast_seconds +Inf",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    // Each metric has its type before it, once.
    let mut known = std::collections::HashSet::new();
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", ..] => {}
            ["#", "TYPE", name, "counter" | "gauge"] => assert!(known.insert(name), "{name} twice"),
            [sample, value] => {
                let name = sample.split('{').next().unwrap();
                assert!(known.contains(name), "{line}");
                assert!(value.trim_start_matches('+').to_lowercase().parse::<f64>().is_ok(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }
    assert!(text.lines().all(|line| !line.contains("NaN") || line.contains("last_kill")));
}

#[test]
fn the_largest_numbers_fit() {
    let mut metrics = metrics();
    metrics.kills = [[u64::MAX; METHODS.len()]; REASONS.len()];
    let mut answer = Text::<MAX_RESPONSE_BYTES>::of(&metrics);
    answer.push(&[0; MAX_RESPONSE_BYTES / 4]);
    assert!(!answer.is_cut());
}

#[test]
fn a_client_is_answered_and_disconnected() {
    let (mut server, dir) = server();
    let mut client = connect(&dir);
    server.serve(&metrics());
    // A request can come in pieces.
    for piece in ["GET /metr", "ics HTTP/1.1\r\nHost: x\r", "\n\r\n"] {
        client.write_all(piece.as_bytes()).unwrap();
        server.serve(&metrics());
    }
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert_eq!(body, metrics().to_string());
    assert!(server.clients.iter().all(Option::is_none));
}

#[test]
fn a_hostile_name_stays_within_its_label() {
    assert_eq!(Label(b"a\"} 1\nb\\\xff").to_string(), r#"a\"} 1?b\\?"#);
}

#[test]
fn clients_on_a_port_are_answered_too() {
    let mut server = Server::listen("127.0.0.1:0").unwrap();
    let listener = TcpListener::from(server.listener.try_clone().unwrap());
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let began = Instant::now();
    while server.turn == 0 || server.clients.iter().any(Option::is_some) {
        server.serve(&Metrics::default());
        thread::sleep(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(&Metrics::default().to_string()));
    for bad in ["192.0.2.1:1", "localhost", "9105", ""] {
        assert!(Server::listen(bad).is_err(), "{bad}");
    }
}

#[test]
fn stuck_clients_neither_block_nor_pile_up() {
    let (mut server, dir) = server();
    let began = Instant::now();
    let mut stuck = Vec::new();
    for round in 0..20 {
        let mut client = connect(&dir);
        // Some say nothing, some do not end, some do not read.
        match round % 3 {
            0 => {}
            1 => client.write_all(b"GET / HTTP/1.0\r\n").unwrap(),
            _ => client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap(),
        }
        stuck.push(client);
        server.serve(&metrics());
        server.serve(&metrics());
    }
    assert!(server.clients.iter().flatten().count() <= MAX_CLIENTS);
    let mut good = connect(&dir);
    good.write_all(b"GET / HTTP/1.0\n\n").unwrap();
    server.serve(&metrics());
    server.serve(&metrics());
    let mut answer = String::new();
    good.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("memreap_kills_total"));
    assert!(began.elapsed() < Duration::from_secs(5));

    // Without end: hung up on.
    let mut endless = connect(&dir);
    endless.set_nonblocking(true).unwrap();
    server.serve(&metrics());
    let mut hung_up = false;
    for _ in 0..100 {
        hung_up |= endless.write_all(&[b'x'; 512]).is_err();
        server.serve(&metrics());
    }
    assert!(hung_up);
    // And those who left are forgotten.
    drop((stuck, endless));
    // At once, but for a process that another test has just forked, and that has them for a moment.
    while server.clients.iter().any(Option::is_some) {
        server.serve(&metrics());
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_socket_left_behind_is_replaced_but_nothing_else() {
    let (server, dir) = server();
    let path = dir.path().join("metrics");
    let path = path.to_str().unwrap();
    assert!(Server::listen(path).is_err(), "another process listens there");
    drop(server);
    Server::listen(path).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    assert!(Server::listen(file.to_str().unwrap()).is_err());
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}
