//! virtio-blk over a layered [`Disk`]. Requests are carried out one after the other, to the end.
//!
//! The guest sees blocks of 4 KiB; a request that is not aligned to them, lies outside the disk or is
//! malformed gets an error status. A request is never half in flight when the machine is forked.

use std::io::{self, Read, Write};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP as UNMAP,
};
use virtio_queue::{DescriptorChain, Reader, Writer};

use super::{Transport, serve};
use crate::disk::{BLOCK, Disk};
use crate::memory::Guest;

const KIND: u32 = 2;
const QUEUE: u16 = 128;
const SECTOR: u64 = 512;
const SECTORS_PER_BLOCK: u64 = BLOCK as u64 / SECTOR;
/// Segments of a request; with pages as segments, half a MiB.
const SEGMENTS_MAX: u32 = 126;
/// Largest data of a request, whatever its segments.
const BYTES_MAX: usize = 4 << 20;
/// Most blocks of one discard.
const DISCARD_MAX: u32 = 1 << 18;
const ID_LENGTH: usize = 20;

/// The device's registers.
pub fn transport(disk: &Disk) -> Transport {
    let mut features = 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE;
    features |= if disk.read_only() {
        1 << VIRTIO_BLK_F_RO
    } else {
        1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    };
    Transport::new(KIND, features, &[QUEUE], config(disk))
}

/// `struct virtio_blk_config`
pub fn config(disk: &Disk) -> Vec<u8> {
    let sectors_max = DISCARD_MAX * u32::try_from(SECTORS_PER_BLOCK).unwrap_or(8);
    let block = u32::try_from(BLOCK).unwrap_or(0).to_le_bytes();
    let alignment = u32::try_from(SECTORS_PER_BLOCK).unwrap_or(0).to_le_bytes();
    let mut bytes = vec![0; 60]; // zero sectors: no medium
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &(disk.blocks() * SECTORS_PER_BLOCK).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block);
    put(36, &sectors_max.to_le_bytes()); // discard: sectors,
    put(40, &1u32.to_le_bytes()); //                 segments,
    put(44, &alignment); //                          alignment
    put(48, &sectors_max.to_le_bytes()); // zeroes:  sectors,
    put(52, &1u32.to_le_bytes()); //                 segments,
    put(56, &[1]); //                                may unmap
    bytes
}

/// What came of a kick.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The guest is to be interrupted.
    pub interrupt: bool,
    /// The host refused something, for the first time since the last kick.
    pub failure: Option<String>,
}

/// Answers what waits.
pub fn serve_kick(transport: &Transport, memory: &Guest, disk: &mut Disk) -> Served {
    let mut inside = transport.queues();
    inside.was_reset = false;
    let mut served = Served::default();
    if !inside.live() {
        return served;
    }
    let worked = serve(&mut inside.queues[0], memory, |chain| {
        answer(chain, memory, disk, &mut served.failure)
    });
    served.interrupt = inside.settle(worked);
    served
}

/// Carries out one request. Bytes written to the guest.
fn answer(
    chain: DescriptorChain<&Guest>,
    memory: &Guest,
    disk: &mut Disk,
    failure: &mut Option<String>,
) -> u32 {
    let (Ok(mut reader), Ok(mut writer)) =
        (chain.clone().reader::<()>(memory), chain.writer::<()>(memory))
    else {
        return 0;
    };
    // The last byte that the guest lets us write is for the status.
    let Some(room) = writer.available_bytes().checked_sub(1) else { return 0 };
    let Ok(mut status) = writer.split_at(room) else { return 0 };
    let code = match carry_out(&mut reader, &mut writer, disk) {
        Ok(()) => VIRTIO_BLK_S_OK,
        Err(Refused::Unsupported) => VIRTIO_BLK_S_UNSUPP,
        Err(Refused::Malformed) => VIRTIO_BLK_S_IOERR,
        Err(Refused::Host(error)) => {
            disk.stats.errors += 1;
            failure.get_or_insert_with(|| error.to_string());
            VIRTIO_BLK_S_IOERR
        }
    };
    let written = writer.bytes_written() + 1;
    if status.write_obj(u8::try_from(code).unwrap_or(1)).is_err() {
        return 0;
    }
    u32::try_from(written).unwrap_or(0)
}

enum Refused {
    Unsupported,
    Malformed,
    Host(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem => Self::Malformed,
            _ => Self::Host(error),
        }
    }
}

fn carry_out(reader: &mut Reader, writer: &mut Writer, disk: &mut Disk) -> Result<(), Refused> {
    let malformed = |_| Refused::Malformed;
    let kind: u32 = reader.read_obj().map_err(malformed)?;
    let _reserved: u32 = reader.read_obj().map_err(malformed)?;
    let sector: u64 = reader.read_obj().map_err(malformed)?;
    match kind {
        VIRTIO_BLK_T_IN => {
            let mut data = buffer(writer.available_bytes())?;
            disk.stats.reads += 1;
            disk.read(block(sector)?, &mut data)?;
            writer.write_all(&data).map_err(malformed)
        }
        VIRTIO_BLK_T_OUT => {
            let mut data = buffer(reader.available_bytes())?;
            reader.read_exact(&mut data).map_err(malformed)?;
            disk.stats.writes += 1;
            Ok(disk.write(block(sector)?, &data)?)
        }
        VIRTIO_BLK_T_FLUSH => Ok(disk.flush()?),
        VIRTIO_BLK_T_GET_ID => {
            let mut id = [0; ID_LENGTH];
            id[..5].copy_from_slice(b"ramet");
            let length = writer.available_bytes().min(ID_LENGTH);
            writer.write_all(&id[..length]).map_err(malformed)
        }
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            let sector: u64 = reader.read_obj().map_err(malformed)?;
            let sectors: u32 = reader.read_obj().map_err(malformed)?;
            let flags: u32 = reader.read_obj().map_err(malformed)?;
            if flags & !(u32::from(kind == VIRTIO_BLK_T_WRITE_ZEROES) * UNMAP) != 0 {
                return Err(Refused::Unsupported);
            }
            let first = block(sector)?;
            let count = block(sectors.into())?;
            // One segment, as the configuration says.
            if count > u64::from(DISCARD_MAX) || reader.available_bytes() > 0 {
                return Err(Refused::Malformed);
            }
            Ok(disk.discard(first, count)?)
        }
        _ => Err(Refused::Unsupported),
    }
}

fn block(sector: u64) -> Result<u64, Refused> {
    if !sector.is_multiple_of(SECTORS_PER_BLOCK) {
        return Err(Refused::Malformed);
    }
    Ok(sector / SECTORS_PER_BLOCK)
}

/// Room for the data of a request.
fn buffer(length: usize) -> Result<Vec<u8>, Refused> {
    if length > BYTES_MAX || !length.is_multiple_of(BLOCK) {
        return Err(Refused::Malformed);
    }
    Ok(vec![0; length])
}

#[cfg(test)]
mod tests;
