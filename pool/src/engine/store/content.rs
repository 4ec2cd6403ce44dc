//! The digest of a root, for images without a configuration.

use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, OFlags};

use super::blocking_job::BlockingJob;
use super::description::Description;
use super::digest::{Digest, Fields, Hashing};
use super::error::{IoContext, StoreError};
use super::tree::{self, Node, Root};

/// The digest of all that a sandbox sees of an image: each path with its type, mode, owner and content,
/// and the description. Times are left out, so that the same build gives the same image.
pub(super) fn digest(
    root: &Root,
    description: &Description,
    job: &BlockingJob,
) -> Result<Digest, StoreError> {
    let mut fields = Fields::default();
    for list in [&description.env, &description.volumes] {
        fields.add_number(list.len() as u64);
        list.iter().for_each(|field| fields.add(field.as_bytes()));
    }
    let walked = tree::walk(root, &mut |visit| -> io::Result<()> {
        job.check_canceled()?;
        if matches!(visit.node, Node::Leave(_)) {
            return Ok(());
        }
        fields.add(visit.path.as_os_str().as_bytes());
        fields.add_number(visit.stat.st_mode.into());
        fields.add_number(visit.stat.st_uid.into());
        fields.add_number(visit.stat.st_gid.into());
        let Node::Leaf { parent, name } = visit.node else { return Ok(()) };
        match tree::kind(visit.stat) {
            FileType::Symlink => fields.add(tree::link(parent, name)?.as_os_str().as_bytes()),
            FileType::RegularFile => {
                let file = tree::open(parent, name, OFlags::RDONLY)?;
                fields.add(Hashing::new(file).finish()?.0.as_str().as_bytes());
            }
            _ => {}
        }
        Ok(())
    });
    walked.context(|| "can't take the digest of an image".to_owned())?;
    Ok(fields.finish())
}
