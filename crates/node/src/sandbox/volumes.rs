//! Volumes: directories that outlive sandboxes.
//!
//! A volume is a directory of files on the node that only monitors open, and a row in the database. Who has it is said by
//! the sandboxes' own records and by nothing else, so that it is free when they are gone: many read it, or one writes it. A
//! claim is written down before anything is done ([`Attachment::changing`]), so that a killed node finds it and undoes what
//! was half done.
//!
//! | what | becomes of a volume that is | read | written |
//! |---|---|---|---|
//! | fork of a running sandbox | in the children | read | a snapshot |
//! | fork of a checkpoint or stored sandbox, checkout | in the new ones | a snapshot | a snapshot |
//! | pause and resume | in the sandbox | read | written |
//! | rewind | in the sandbox | read, if it still has it | refused |
//! | promote | in the sandbox | as in the winner | refused |
//! | failure | in the sandbox | free | free |
//!
//! A snapshot is the sandbox's own, copy-on-write; it claims nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ramet_proto::agent::{Mount, Request};
use ramet_proto::api::{self, AttachVolume, CreateVolume, EventKind, VolumeMode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::error::Error;
use super::images::blocking;
use super::life::machine_of;
use super::record::{Phase, Record};
use super::registry::Registry;
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::host::{self, MachineId, Medium, SLOTS, agent, slot_device};
use crate::random;
use crate::store::Change;

/// Most volumes.
const VOLUMES_MAX: usize = 1000;
/// Room where none is said.
const SIZE_MIB: u32 = 1024;
/// How long a guest may take to write what it has before it is ended.
const LAST_WRITES: Duration = Duration::from_secs(20);
/// Longest path in a guest.
const PATH_MAX: usize = 4096;

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Id, and name of its directory.
    pub id: String,
    /// Principal.
    pub owner: String,
    /// Name, unique among the owner's.
    pub name: String,
    /// Room for files.
    pub size_mib: u32,
    /// When it came to be.
    pub created_at_ms: u64,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Id of the volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Where it is in the guest.
    pub path: String,
    /// The machine's slot.
    pub slot: u8,
    /// How.
    pub mode: VolumeMode,
    /// When it came there; tells one attachment from another of the same volume.
    pub attached_at_ms: u64,
    /// It is on its way in or out. What a killed node leaves so is taken out.
    #[serde(default)]
    pub changing: bool,
}

impl Attachment {
    fn shown(&self) -> api::AttachedVolume {
        api::AttachedVolume {
            volume: self.name.clone(),
            volume_id: self.volume.clone(),
            path: self.path.clone(),
            mode: self.mode,
        }
    }

    fn claims(&self) -> bool {
        self.mode != VolumeMode::Snapshot
    }

    fn snapshot(&self) -> Self {
        Self { mode: VolumeMode::Snapshot, ..self.clone() }
    }
}

/// What clients see of a sandbox's volumes.
pub fn shown(record: &Record) -> Vec<api::AttachedVolume> {
    let there = |attachment: &&Attachment| !attachment.changing && record.phase != Phase::Failed;
    record.volumes.iter().filter(there).map(Attachment::shown).collect()
}

/// As they are in a copy that was made elsewhere or at another time.
pub fn snapshots(volumes: &[Attachment]) -> Vec<Attachment> {
    volumes.iter().map(Attachment::snapshot).collect()
}

/// As they are in a fork of a machine that is there.
pub fn shared(volumes: &[Attachment]) -> Vec<Attachment> {
    let copy = |attachment: &Attachment| match attachment.mode {
        VolumeMode::ReadOnly => attachment.clone(),
        VolumeMode::ReadWrite | VolumeMode::Snapshot => attachment.snapshot(),
    };
    volumes.iter().map(copy).collect()
}

/// As they are after a sandbox went back: what it reads still is what it read then.
pub fn rewound(now: &[Attachment], then: &[Attachment]) -> Vec<Attachment> {
    let kept = |attachment: &Attachment| match now.contains(attachment) {
        true => attachment.clone(),
        false => attachment.snapshot(),
    };
    shared(&then.iter().map(kept).collect::<Vec<_>>())
}

/// Refuses to give a sandbox that writes a volume another machine: that would not have what the volume has.
pub fn refuse_writer(record: &Record, what: &str) -> Result<(), Error> {
    let writes = |attachment: &&Attachment| attachment.mode == VolumeMode::ReadWrite;
    match record.volumes.iter().find(writes) {
        None => Ok(()),
        Some(attachment) => Err(Error::WrongState(format!(
            "the sandbox {} writes the volume {}, which would not {what} with it; detach it first",
            record.id, attachment.name
        ))),
    }
}

/// The volumes that a stored sandbox goes on to write.
pub fn written(record: &Record) -> Vec<&Attachment> {
    record.volumes.iter().filter(|one| one.mode == VolumeMode::ReadWrite).collect()
}

impl Registry {
    /// The volume that a principal means, by name or id.
    pub fn volume(&self, who: &Principal, key: &str) -> Result<&Volume, Error> {
        let mine = self.volumes().filter(|volume| volume.owner == who.name());
        let mut meant = mine.filter(|volume| volume.name == key || volume.id == key);
        meant.next().ok_or_else(|| Error::NotFound { what: "volume", key: key.to_owned() })
    }

    /// Sandboxes that have a volume, and how.
    fn users<'r>(&'r self, volume: &'r str) -> impl Iterator<Item = (&'r Record, &'r Attachment)> {
        let live = |record: &&Record| !matches!(record.phase, Phase::Gone | Phase::Failed);
        self.all().filter(live).flat_map(move |record| {
            let its = record.volumes.iter().filter(move |one| one.claims() && one.volume == volume);
            its.map(move |attachment| (record, attachment))
        })
    }

    /// Refuses what does not go together with those who have the volume.
    fn check_claim(&self, volume: &Volume, read_only: bool) -> Result<(), Error> {
        let mut users = self.users(&volume.id);
        let other =
            users.find(|(_, attachment)| !read_only || attachment.mode == VolumeMode::ReadWrite);
        let Some((record, attachment)) = other else { return Ok(()) };
        let (does, wanted) = match (attachment.mode, read_only) {
            (VolumeMode::ReadWrite, true) => ("writes", "be read"),
            (VolumeMode::ReadWrite, false) => ("writes", "be written by another"),
            _ => ("reads", "be written"),
        };
        Err(Error::InUse(format!(
            "the sandbox {} ({}) {does} the volume {}, so it cannot {wanted}; detach it there first",
            record.name, record.id, volume.name
        )))
    }
}

impl Service {
    /// Makes a volume.
    pub async fn create_volume(
        &self,
        who: &Principal,
        request: CreateVolume,
    ) -> Result<api::Volume, Error> {
        check::name(&request.name)?;
        let size_mib = request.size_mib.unwrap_or(SIZE_MIB);
        let range = check::DISK_MIB_MIN..=check::DISK_MIB_MAX;
        if !range.contains(&size_mib) {
            let text = format!("size_mib: {} to {}, not {size_mib}", range.start(), range.end());
            return Err(Error::Bad(text));
        }
        let volume = Volume {
            id: format!("vol-{}", random::hex(8)?),
            owner: who.name().to_owned(),
            name: request.name,
            size_mib,
            created_at_ms: now_ms(),
        };
        let (service, target) = (self.clone(), volume.name.clone());
        self.operate(who, "volume_create", &target, async move {
            service.check_new(&volume)?;
            let directory = service.volume_directory(&volume.id);
            let made = directory.clone();
            let work = move |engine: &dyn host::Engine| {
                std::fs::create_dir_all(&made)?;
                engine.make_volume(&made, size_mib)?;
                // The names, and the name of the directory.
                std::fs::File::open(&made)?.sync_all()?;
                Ok(made.parent().map_or(Ok(()), |above| std::fs::File::open(above)?.sync_all())?)
            };
            let done = match service.host.call(work).await {
                Ok(()) => service.commit(|registry| {
                    registry.check_volume_name(&volume)?;
                    Ok(Change { volumes: vec![volume.clone()], ..Change::default() })
                }),
                Err(error) => Err(error.into()),
            };
            match done {
                Ok(()) => service.shown_volume(volume).await,
                Err(error) => {
                    service.remove_files(directory).await;
                    Err(error)
                }
            }
        })
        .await
    }

    fn check_new(&self, volume: &Volume) -> Result<(), Error> {
        let registry = self.registry();
        if registry.volumes().count() >= VOLUMES_MAX {
            let text = format!("this node has {VOLUMES_MAX} volumes, the most; remove some");
            return Err(Error::NoCapacity(text));
        }
        registry.check_volume_name(volume)
    }

    /// Where the files of a volume are.
    fn volume_directory(&self, id: &str) -> PathBuf {
        self.volumes_directory().join(id)
    }

    fn volumes_directory(&self) -> PathBuf {
        self.settings.data_dir.join("volumes")
    }

    async fn remove_files(&self, directory: PathBuf) {
        let removed = blocking(move || Ok(std::fs::remove_dir_all(directory)?)).await;
        if let Err(error) = removed {
            tracing::warn!(?error, "files of a volume stay until the next start");
        }
    }

    async fn shown_volume(&self, volume: Volume) -> Result<api::Volume, Error> {
        let directory = self.volume_directory(&volume.id);
        let stored_bytes = blocking(move || Ok(room(&directory)?)).await?;
        let registry = self.registry();
        let used_by = registry.users(&volume.id).map(|(record, attachment)| api::VolumeUse {
            sandbox: record.id.clone(),
            sandbox_name: record.name.clone(),
            path: attachment.path.clone(),
            mode: attachment.mode,
        });
        Ok(api::Volume {
            used_by: used_by.collect(),
            id: volume.id.clone(),
            name: volume.name,
            owner: volume.owner,
            size_mib: volume.size_mib,
            stored_bytes,
            created_at_ms: volume.created_at_ms,
        })
    }

    /// All volumes of a principal.
    pub async fn list_volumes(&self, who: &Principal) -> Result<api::VolumeList, Error> {
        let mine = |volume: &&Volume| volume.owner == who.name();
        let mut mine: Vec<Volume> = self.registry().volumes().filter(mine).cloned().collect();
        mine.sort_by(|a, b| a.name.cmp(&b.name));
        let mut volumes = Vec::new();
        for volume in mine {
            volumes.push(self.shown_volume(volume).await?);
        }
        Ok(api::VolumeList { volumes })
    }

    /// A volume.
    pub async fn get_volume(&self, who: &Principal, key: &str) -> Result<api::Volume, Error> {
        let volume = self.registry().volume(who, key)?.clone();
        self.shown_volume(volume).await
    }

    /// Removes a volume that nobody has. Snapshots of it stay.
    pub async fn delete_volume(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let volume = self.registry().volume(who, key)?.clone();
        let service = self.clone();
        self.operate(who, "volume_delete", &volume.name.clone(), async move {
            service.commit(|registry| {
                if let Some((record, attachment)) = registry.users(&volume.id).next() {
                    return Err(Error::InUse(format!(
                        "the sandbox {} ({}) has the volume {} at {}; detach it there first",
                        record.name, record.id, volume.name, attachment.path
                    )));
                }
                Ok(Change { forget_volumes: vec![volume.id.clone()], ..Change::default() })
            })?;
            service.remove_files(service.volume_directory(&volume.id)).await;
            Ok(())
        })
        .await
    }

    /// Sees whether a sandbox can have these volumes, before anything is made.
    pub(super) fn check_volumes(
        &self,
        who: &Principal,
        wishes: &[AttachVolume],
    ) -> Result<(), Error> {
        if wishes.len() > usize::from(SLOTS) {
            return Err(Error::Bad(format!("volumes: at most {SLOTS}, not {}", wishes.len())));
        }
        let registry = self.registry();
        let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
        for wish in wishes {
            let path = checked_path(&wish.path)?;
            let volume = registry.volume(who, &wish.volume)?;
            registry.check_claim(volume, wish.read_only)?;
            if !names.insert(volume.id.clone()) || !paths.insert(path) {
                let text = format!("volumes: {} or its path stands there twice", wish.volume);
                return Err(Error::Bad(text));
            }
        }
        Ok(())
    }

    /// Gives a sandbox a volume.
    pub async fn attach_volume(
        &self,
        who: &Principal,
        key: &str,
        request: AttachVolume,
    ) -> Result<api::Sandbox, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal) = (self.clone(), who.clone());
        let target = format!("{id} {}", request.volume);
        self.operate(who, "volume_attach", &target, async move {
            let _own = service.own(&id).await?;
            service.attach_one(&principal, &id, &request).await?;
            Ok(service.find(&principal, &id)?.shown())
        })
        .await
    }

    /// The caller owns the sandbox.
    pub(super) async fn attach_one(
        &self,
        who: &Principal,
        id: &str,
        wish: &AttachVolume,
    ) -> Result<(), Error> {
        let machine = running(&self.find(who, id)?, "get a volume")?;
        let mut claimed = None;
        self.commit(|registry| {
            let attachment = claim(registry, who, id, wish)?;
            let mut record = registry.find(who, id)?.clone();
            record.volumes.push(attachment.clone());
            record.touch();
            claimed = Some(attachment);
            Ok(Change { sandboxes: vec![record], ..Change::default() })
        })?;
        let attachment = claimed.ok_or_else(|| Error::Internal("no claim".to_owned()))?;
        match self.bring(&machine, &attachment).await {
            Ok(()) => {
                self.change_attachment(id, &attachment, |it| it.changing = false)?;
                let volume = Some(attachment.volume.as_str());
                let path = Some(attachment.path.as_str());
                self.events.tell(who.name(), EventKind::VolumeAttached, id, volume, path);
                Ok(())
            }
            Err(error) => {
                self.take_out(id, &attachment).await;
                Err(error)
            }
        }
    }

    /// Puts a volume into a machine, and has the guest mount it.
    async fn bring(&self, machine: &MachineId, attachment: &Attachment) -> Result<(), Error> {
        let read_only = attachment.mode == VolumeMode::ReadOnly;
        let volume = self.volume_directory(&attachment.volume);
        let medium = Medium { slot: attachment.slot, volume, read_only };
        let target = machine.clone();
        let put = move |engine: &dyn host::Engine| {
            // Nobody else has a volume that is going to be written.
            if !medium.read_only {
                engine.fold_volume(&medium.volume)?;
            }
            engine.attach(&target, &medium)
        };
        self.host.call(put).await?;
        let mount = Mount {
            device: slot_device(attachment.slot),
            path: attachment.path.clone(),
            read_only,
        };
        let mut session = self.host.agent(machine).await?;
        Ok(session.done(&Request::Mount(mount)).await?)
    }

    /// Takes a volume from a sandbox.
    pub async fn detach_volume(
        &self,
        who: &Principal,
        key: &str,
        volume: &str,
    ) -> Result<api::Sandbox, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, volume) = (self.clone(), who.clone(), volume.to_owned());
        let target = format!("{id} {volume}");
        self.operate(who, "volume_detach", &target, async move {
            let _own = service.own(&id).await?;
            service.detach_one(&principal, &id, &volume).await?;
            Ok(service.find(&principal, &id)?.shown())
        })
        .await
    }

    async fn detach_one(&self, who: &Principal, id: &str, key: &str) -> Result<(), Error> {
        let record = self.find(who, id)?;
        let meant = |one: &&Attachment| one.name == key || one.volume == key || one.path == key;
        let mut found = record.volumes.iter().filter(meant);
        let (attachment, more) = (found.next().cloned(), found.next());
        let what = "volume of this sandbox";
        let attachment = attachment.ok_or_else(|| Error::NotFound { what, key: key.to_owned() })?;
        if more.is_some() {
            let text = format!("the sandbox has the volume {key} more than once; name its path");
            return Err(Error::Bad(text));
        }
        let machine = running(&record, "give a volume back")?;
        self.change_attachment(id, &attachment, |it| it.changing = true)?;
        if let Err(error) = self.fetch(&machine, &attachment).await {
            self.change_attachment(id, &attachment, |it| it.changing = false)?;
            return Err(in_use(error, &attachment));
        }
        self.forget_attachment(id, &attachment)?;
        let volume = Some(attachment.volume.as_str());
        self.events.tell(who.name(), EventKind::VolumeDetached, id, volume, None);
        Ok(())
    }

    /// Has the guest unmount a volume, and takes it out of the machine.
    async fn fetch(&self, machine: &MachineId, attachment: &Attachment) -> Result<(), Error> {
        self.unmount(machine, attachment.slot).await?;
        self.empty(machine, attachment).await
    }

    async fn unmount(&self, machine: &MachineId, slot: u8) -> Result<(), Error> {
        let mut session = self.host.agent(machine).await?;
        Ok(session.done(&Request::Unmount { device: slot_device(slot) }).await?)
    }

    async fn empty(&self, machine: &MachineId, attachment: &Attachment) -> Result<(), Error> {
        let (target, slot) = (machine.clone(), attachment.slot);
        let directory = self.volume_directory(&attachment.volume);
        let writes = attachment.mode == VolumeMode::ReadWrite;
        let work = move |engine: &dyn host::Engine| {
            engine.detach(&target, slot)?;
            // It is still claimed. What cannot be folded now is, before it is written again.
            if writes && let Err(error) = engine.fold_volume(&directory) {
                tracing::warn!(?error, "a volume's layers could not be folded");
            }
            Ok(())
        };
        Ok(self.host.call(work).await?)
    }

    /// After an attachment that did not succeed, or was interrupted: as if nothing had happened.
    async fn take_out(&self, id: &str, attachment: &Attachment) {
        let machine = self.registry().get(id).and_then(|record| record.machine.clone());
        if let Some(machine) = machine {
            // A guest that does not let go loses the medium all the same.
            let unmounted = self.unmount(&machine, attachment.slot).await;
            if let Err(error) = self.empty(&machine, attachment).await {
                tracing::error!(id, ?error, ?unmounted, "a volume could not be taken out");
                return;
            }
        }
        if let Err(error) = self.forget_attachment(id, attachment) {
            tracing::error!(id, ?error, "the end of an attachment could not be written down");
        }
    }

    /// After a start: takes out what was on its way, and removes what was half made.
    pub(super) async fn settle_volumes(&self) -> Result<(), Error> {
        let half: Vec<(String, Attachment)> = {
            let registry = self.registry();
            let all = registry.all().flat_map(|record| {
                let changing = record.volumes.iter().filter(|one| one.changing);
                changing.map(|attachment| (record.id.clone(), attachment.clone()))
            });
            all.collect()
        };
        for (id, attachment) in half {
            let service = self.clone();
            // A guest may take its time; until then nobody else gets the volume.
            self.tasks.spawn(async move {
                let _own = service.own(&id).await;
                service.take_out(&id, &attachment).await;
            });
        }
        let known: BTreeSet<String> =
            self.registry().volumes().map(|volume| volume.id.clone()).collect();
        let directory = self.volumes_directory();
        blocking(move || Ok(remove_strays(&directory, &known)?)).await
    }

    /// Before a machine is ended: what its guest has not written yet reaches the volumes, if the guest still can.
    pub(super) async fn last_writes(&self, record: &Record) {
        let (Phase::Running, Some(machine)) = (record.phase, &record.machine) else { return };
        for attachment in written(record) {
            let done = timeout(LAST_WRITES, self.unmount(machine, attachment.slot)).await;
            if !matches!(done, Ok(Ok(()))) {
                tracing::info!(id = record.id, ?done, "a volume was not unmounted before the end");
            }
        }
    }

    /// The volumes that a machine made from a stored state goes on to write.
    pub(super) fn media(&self, record: &Record) -> Vec<Medium> {
        let medium = |attachment: &Attachment| Medium {
            slot: attachment.slot,
            volume: self.volume_directory(&attachment.volume),
            read_only: false,
        };
        written(record).into_iter().map(medium).collect()
    }

    fn change_attachment(
        &self,
        id: &str,
        attachment: &Attachment,
        change: impl FnOnce(&mut Attachment),
    ) -> Result<(), Error> {
        self.with_attachment(id, attachment, |volumes, place| change(&mut volumes[place]))
    }

    fn forget_attachment(&self, id: &str, attachment: &Attachment) -> Result<(), Error> {
        self.with_attachment(id, attachment, |volumes, place| drop(volumes.remove(place)))
    }

    fn with_attachment(
        &self,
        id: &str,
        attachment: &Attachment,
        change: impl FnOnce(&mut Vec<Attachment>, usize),
    ) -> Result<(), Error> {
        self.commit(|registry| {
            let Some(mut record) = registry.get(id).cloned() else { return Ok(Change::default()) };
            let same = |one: &Attachment| {
                one.slot == attachment.slot && one.attached_at_ms == attachment.attached_at_ms
            };
            if let Some(place) = record.volumes.iter().position(same) {
                change(&mut record.volumes, place);
            }
            Ok(Change { sandboxes: vec![record], ..Change::default() })
        })
    }
}

impl Registry {
    fn check_volume_name(&self, volume: &Volume) -> Result<(), Error> {
        let same = |other: &Volume| other.owner == volume.owner && other.name == volume.name;
        if self.volumes().any(same) {
            return Err(Error::Exists(format!("there is a volume {} already", volume.name)));
        }
        Ok(())
    }
}

/// The place of a volume in a sandbox, if both are free.
fn claim(
    registry: &Registry,
    who: &Principal,
    id: &str,
    wish: &AttachVolume,
) -> Result<Attachment, Error> {
    let path = checked_path(&wish.path)?;
    let volume = registry.volume(who, &wish.volume)?;
    let record = registry.find(who, id)?;
    if let Some(other) = record.volumes.iter().find(|other| other.path == path) {
        return Err(Error::Exists(format!("{path}: the volume {} is there already", other.name)));
    }
    let twice = |other: &&Attachment| other.volume == volume.id && other.claims();
    if let Some(other) = record.volumes.iter().find(twice) {
        let text = format!("the sandbox has the volume {} already, at {}", volume.name, other.path);
        return Err(Error::Exists(text));
    }
    registry.check_claim(volume, wish.read_only)?;
    let free = |slot: &u8| record.volumes.iter().all(|other| other.slot != *slot);
    let slot = (0..SLOTS).find(free).ok_or_else(|| {
        Error::TooMany(format!("the sandbox has {SLOTS} volumes, the most; detach one"))
    })?;
    Ok(Attachment {
        volume: volume.id.clone(),
        name: volume.name.clone(),
        path,
        slot,
        mode: if wish.read_only { VolumeMode::ReadOnly } else { VolumeMode::ReadWrite },
        attached_at_ms: now_ms(),
        changing: true,
    })
}

/// A path that a guest can have a volume at, in its shortest form. The guest itself looks closer.
fn checked_path(path: &str) -> Result<String, Error> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let parts = || Path::new(path).components();
    let clean: PathBuf = parts().collect();
    let fine = path.starts_with('/') && !path.contains('\0') && path.len() <= PATH_MAX;
    if !fine || !parts().all(plain) || clean.parent().is_none() {
        let text = "an absolute path of a directory, without `..`";
        return Err(Error::Bad(format!("path {path:?}: {text}")));
    }
    Ok(clean.to_string_lossy().into_owned())
}

/// The machine of a sandbox that runs.
fn running(record: &Record, what: &str) -> Result<MachineId, Error> {
    if record.phase == Phase::Paused {
        return Err(Error::WrongState(format!(
            "the sandbox {} is paused and cannot {what}; resume it first",
            record.id
        )));
    }
    machine_of(record, what)
}

fn in_use(error: Error, attachment: &Attachment) -> Error {
    match error {
        Error::Guest(agent::Error::Failure(failure)) if failure.code == "busy" => Error::InUse(
            format!("something in the sandbox uses {}; end it and try again", attachment.path),
        ),
        other => other,
    }
}

/// Room that files take.
fn room(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    let entries = match std::fs::read_dir(directory) {
        // It was removed meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    for entry in entries {
        bytes += entry?.metadata().map_or(0, |found| found.blocks() * 512);
    }
    Ok(bytes)
}

/// Removes directories of volumes that no row names.
fn remove_strays(directory: &Path, known: &BTreeSet<String>) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !known.contains(&*entry.file_name().to_string_lossy()) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
