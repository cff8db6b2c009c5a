//! A full disk under the node: what cannot be done is refused and says why, nothing is lost, and with room everything
//! works again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};
use ramet_client::api::{Code, CreateSandbox};

use crate::bed::{Node, directory, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![a_full_disk];

/// A filesystem that is soon full.
struct Small(PathBuf);

impl Small {
    fn mount() -> Self {
        let path = directory("small");
        let options = Some("size=96m");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), options)
            .expect("mounting needs root");
        Self(path)
    }

    /// Takes all the room there is.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = File::create(&path).expect("a file");
        for size in [1 << 20, 4096, 1] {
            while file.write(&vec![1; size]).is_ok() {}
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The directory around it goes next, and says what is still mounted.
        let _ = umount(&self.0);
    }
}

fn home(small: &Small) -> PathBuf {
    let home = Path::new(&small.0).join("home");
    fs::create_dir(&home).expect("a directory");
    home
}

fn a_full_disk() {
    let small = Small::mount();
    let node = Node::unready("full", &home(&small), &[]);
    node.await_ready();
    let (sandbox, writer) = (node.create("calm"), node.create("writer"));
    sandbox.put("/srv/file", "precious");
    let ballast = small.fill();
    // The guest's own disk is full as far as it is concerned.
    let write = "dd if=/dev/urandom of=/srv/large bs=1M count=16 conv=fsync";
    if let Ok(result) = writer.exec(&ramet_client::api::ExecRequest {
        command: Some(write.to_owned()),
        ..Default::default()
    }) {
        assert!(!result.ok, "{result:?}");
    }
    let mut made = Vec::new();
    let refused = loop {
        match wait(node.client.create(&CreateSandbox::default())) {
            Ok(created) => made.push(node.handle(created.sandbox.id)),
            Err(error) => break error,
        }
        assert!(made.len() < 100, "the disk is not full");
    };
    assert_eq!(refused.code(), Some(Code::NoSpace), "{refused:?}\n{}", node.log());
    assert!(refused.to_string().contains("disk"), "{refused}");
    // What is there can be looked at, and what is not needed can go.
    assert_eq!(sandbox.get("/srv/file"), "precious");
    drop(made);
    writer.delete();
    fs::remove_file(ballast).expect("it was there");
    let fresh = node.create("fresh");
    assert_eq!(fresh.sh("echo room > /srv/file; sync; cat /srv/file"), "room");
    assert_eq!(sandbox.sh("cat /srv/file; echo more >> /srv/file; sync"), "precious");
    truth::holds(&node);
    node.restart();
    node.await_ready();
    assert_eq!(sandbox.get("/srv/file"), "preciousmore\n");
    drop((sandbox, fresh));
    drop(node);
    drop(small);
}
