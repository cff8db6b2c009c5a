//! The control socket: one node at a time, one JSON message a packet, descriptors beside it.
//!
//! Who connects later takes the place of who came before. The service and its ports do not care whether anybody is connected.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ramet_proto::net::{Answer, Code, MESSAGE_MAX, Message, Request};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::service::Service;

/// Descriptors of a message that are taken; more are refused.
const FDS_MAX: usize = 4;

/// Makes the socket, which nobody but its owner can connect to.
///
/// # Errors
/// If somebody listens there already, or the place is not writable.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path).context("the path of the socket is too long")?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    if path.exists() {
        let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        if rustix::net::connect(&probe, &address).is_ok() {
            bail!("somebody listens at {} already", path.display());
        }
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound.with_context(|| format!("cannot listen at {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

/// Serves until it is told to stop.
///
/// # Errors
/// If the socket breaks.
pub async fn serve(socket: OwnedFd, service: &mut Service) -> Result<()> {
    let socket = crate::sys::watch(socket, Interest::READABLE)?;
    let mut node = Some(accept(&socket).await?);
    while let Some(current) = node.take() {
        node = tokio::select! {
            next = accept(&socket) => Some(next?),
            ended = attend(&current, service) => match ended {
                Ended::Stop => None,
                Ended::HungUp => Some(accept(&socket).await?),
            },
        };
    }
    Ok(())
}

/// How a connection ended.
enum Ended {
    Stop,
    HungUp,
}

async fn accept(socket: &AsyncFd<OwnedFd>) -> Result<AsyncFd<OwnedFd>> {
    loop {
        let mut ready = socket.readable().await?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match ready.try_io(|socket| Ok(rustix::net::accept_with(socket, flags)?)) {
            Ok(Ok(node)) => {
                return Ok(crate::sys::watch(node, Interest::READABLE | Interest::WRITABLE)?);
            }
            Ok(Err(error)) => tracing::warn!(%error, "accept"),
            Err(_) => {}
        }
    }
}

/// One connection. A request that is under way when another node connects is given up: the node that asked is gone.
async fn attend(node: &AsyncFd<OwnedFd>, service: &mut Service) -> Ended {
    let hello = Answer::Hello { version: ramet_proto::VERSION, pid: std::process::id() };
    if send(node, &hello).await.is_err() {
        return Ended::HungUp;
    }
    loop {
        let Ok(Some((bytes, fds))) = receive(node).await else { return Ended::HungUp };
        let answer = match serde_json::from_slice::<Message>(&bytes) {
            Ok(message) if message.request == (Request::Stop {}) => {
                let outcome = ramet_proto::net::Outcome::Nothing {};
                // It may have hung up already; it is obeyed.
                drop(send(node, &Answer::Done { id: message.id, outcome }).await);
                return Ended::Stop;
            }
            Ok(Message { id, request }) => match service.handle(request, fds).await {
                Ok(outcome) => Answer::Done { id, outcome },
                Err((code, message)) => Answer::Failed { id: Some(id), code, message },
            },
            Err(error) => Answer::Failed {
                id: None,
                code: Code::BadMessage,
                message: format!("not a message: {error}"),
            },
        };
        if send(node, &answer).await.is_err() {
            return Ended::HungUp;
        }
    }
}

/// The next message. None if the node hung up, or sent one that does not fit, after which it is not understood any more.
async fn receive(node: &AsyncFd<OwnedFd>) -> std::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    loop {
        let mut ready = node.readable().await?;
        match ready.try_io(receive_now) {
            Ok(received) => return received,
            Err(_) => continue,
        }
    }
}

fn receive_now(node: impl AsFd) -> std::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        node,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 || received.bytes > MESSAGE_MAX {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, fds)))
}

async fn send(node: &AsyncFd<OwnedFd>, answer: &Answer) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(answer)?;
    loop {
        let mut ready = node.writable().await?;
        let write = |node: &AsyncFd<OwnedFd>| {
            let mut none = SendAncillaryBuffer::default();
            let slices = [IoSlice::new(&bytes)];
            rustix::net::sendmsg(node, &slices, &mut none, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        match ready.try_io(write) {
            Ok(sent) => return sent,
            Err(_) => continue,
        }
    }
}
