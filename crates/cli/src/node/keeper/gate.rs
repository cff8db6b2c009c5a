//! The door to the software host: takes as many connections as come, and passes them on one after the other.
//!
//! The emulator's forwarding has room for one connection that it has not taken yet; more at the same time are
//! reset. So clients connect here, and the gate makes the next connection to the emulator when the one before
//! has been taken, which the kernel's table of connections shows: one that nobody has taken has no inode.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// Most connections at once; later ones wait in the kernel.
const CONNECTIONS_MAX: usize = 1024;
/// How long the emulator may take for a connection.
const TAKE_TIME: Duration = Duration::from_secs(20);
/// Between two looks whether it was taken.
const LOOK: Duration = Duration::from_millis(2);

/// An open door. It closes, with every connection, when this is dropped.
pub struct Gate {
    address: SocketAddr,
    /// Dropped to end the thread.
    _open: tokio::sync::oneshot::Sender<()>,
}

impl Gate {
    /// Opens a door on this port of the loopback interface, 0 for any, that leads to this address.
    pub fn open(port: u16, inside: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", port)))?;
        let address = listener.local_addr()?;
        let (open, closed) = tokio::sync::oneshot::channel();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = pass_all(listener, inside) => {}
                    _ = closed => {}
                }
            });
        };
        thread::Builder::new().name("gate".to_owned()).spawn(work)?;
        Ok(Self { address, _open: open })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn pass_all(listener: TcpListener, inside: SocketAddr) {
    let turn = Arc::new(Mutex::new(()));
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // Too few descriptors, most likely; those in use are given back.
                eprintln!("keeper: cannot take a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let turn = turn.clone();
        tokio::spawn(async move {
            // A connection that breaks is its two ends' affair.
            if let Err(error) = pass(client, inside, &turn).await
                && error.kind() == io::ErrorKind::TimedOut
            {
                eprintln!("keeper: {error}");
            }
            drop(place);
        });
    }
}

async fn pass(mut client: TcpStream, inside: SocketAddr, turn: &Mutex<()>) -> io::Result<()> {
    let mut server = {
        let _turn = turn.lock().await;
        let server = timeout(TAKE_TIME, TcpStream::connect(inside)).await??;
        await_taken(inside, server.local_addr()?).await?;
        server
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn await_taken(server: SocketAddr, client: SocketAddr) -> io::Result<()> {
    // The emulator listens on an address of the older kind.
    let (SocketAddr::V4(server), SocketAddr::V4(client)) = (server, client) else { return Ok(()) };
    let end = Instant::now() + TAKE_TIME;
    while !taken(&std::fs::read_to_string("/proc/net/tcp")?, server, client) {
        if Instant::now() > end {
            let text = "the software host takes no connections";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Whether the server's side of a connection belongs to a process, by the kernel's table.
fn taken(table: &str, server: SocketAddrV4, client: SocketAddrV4) -> bool {
    let (server, client) = (written(server), written(client));
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.nth(1) == Some(&server)
            && words.next() == Some(&client)
            && words.nth(6).is_some_and(|inode| inode != "0")
    })
}

/// An address as the table has it: the number of the address as this processor reads it.
fn written(address: SocketAddrV4) -> String {
    let ip = u32::from_ne_bytes(address.ip().octets());
    format!("{ip:08X}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};

    use super::*;

    #[test]
    fn the_table_says_who_has_been_taken() {
        let (server, client) = ("127.0.0.1:34331", "127.0.0.1:50000");
        let (server, client) = (server.parse().unwrap(), client.parse().unwrap());
        let row = |inode: u32| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                 1: 0100007F:861B 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 {inode} 1\n"
            )
        };
        assert!(taken(&row(4711), server, client));
        assert!(!taken(&row(0), server, client));
        assert!(!taken(&row(4711), client, server));
        assert!(!taken("", server, client));
    }

    /// A listener with room for one, as the emulator's, that takes its time.
    #[test]
    fn many_at_once_pass_a_narrow_listener() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let narrow = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket.listen(1).unwrap().into_std().unwrap()
        });
        narrow.set_nonblocking(false).unwrap();
        let inside = narrow.local_addr().unwrap();
        let clients = 24;
        let echo = thread::spawn(move || {
            for _ in 0..clients {
                thread::sleep(Duration::from_millis(20));
                let (mut stream, _) = narrow.accept().unwrap();
                thread::spawn(move || {
                    let mut text = Vec::new();
                    stream.read_to_end(&mut text).unwrap();
                    stream.write_all(&text).unwrap();
                });
            }
        });
        let gate = Gate::open(0, inside).unwrap();
        let address = gate.address();
        let ask = move |number: u8| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[number; 100]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            assert_eq!(text, [number; 100]);
        };
        let asked: Vec<_> = (0..clients).map(|number| thread::spawn(move || ask(number))).collect();
        for asker in asked {
            asker.join().unwrap();
        }
        echo.join().unwrap();
    }
}
