//! Importing images from files: archives of `docker save`, OCI layouts and root file systems.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::blobs::{Blobs, IndexedArchive};
use super::blocking_job::{BlockingJob, run_job};
use super::compression::{Bounded, Compression, Decompressed};
use super::description::Description;
use super::digest::{Digest, Hashing};
use super::error::{IoContext, StoreError, is_full};
use super::layout;
use super::room::in_mib;
use super::stage::Staged;
use super::stored::Stored;
use super::unpack::Unpacker;
use super::{Store, names};
use crate::engine::Progress;
use crate::engine::limits::ByteSize;

/// The decompressed archive, in the staging directory.
const ARCHIVE: &str = "archive";

/// A copy of the content of a pipe, in the same directory.
const PIPED: &str = "piped";

/// The name of an archive of a root file system in messages.
const ROOT_FILE_SYSTEM: &str = "the root file system";

/// Size of the buffer, in bytes.
const BUFFER: usize = 128 * 1024;

impl Store {
    /// Imports images from a file or a directory, which may be
    ///
    /// - what `docker save` writes,
    /// - an OCI image layout, as a directory or as a tar archive,
    /// - a tar archive of a root file system, which has no name of its own and needs `name`.
    ///
    /// An archive may be compressed with gzip or zstd, and may come from a pipe. A `name` replaces the names in the archive. Of
    /// an image for several platforms, the one for this machine is taken.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`] except [`StoreError::InUse`] and [`StoreError::Registry`]. Nothing is left of the image
    /// that failed; images before it in the same archive stay.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Vec<Stored>, StoreError> {
        let name = name.map(names::normalize).transpose()?;
        let (store, file) = (self.clone(), path.to_owned());
        let imported = run_job(progress, move |job| store.import_now(&file, name, job)).await;
        let needed = || {
            let file = fs::metadata(path).map_or(0, |file| file.len());
            format!("the image takes at least {} there", in_mib(ByteSize::bytes(file)))
        };
        imported.map_err(|error| error.with_room(&self.directory, needed))
    }

    fn import_now(
        &self,
        path: &Path,
        name: Option<String>,
        job: &BlockingJob,
    ) -> Result<Vec<Stored>, StoreError> {
        job.report(format!("reading {}", path.display()));
        if fs::metadata(path).at("open", path)?.is_dir() {
            let blobs = Blobs::Directory(path.to_owned());
            let images = self.import_images(&blobs, path, name.as_deref(), job)?;
            return images.ok_or_else(|| {
                StoreError::unusable(path.to_string_lossy(), "it is not an OCI image layout")
            });
        }
        self.stage_now()?.finish(|staged| {
            let (file, given) = self.plain(path, staged, job)?;
            let unreadable = |error: io::Error| match error {
                error if is_full(&error) => {
                    StoreError::Io { what: "can't read it".into(), source: error }
                }
                error => StoreError::unusable(path.to_string_lossy(), error),
            };
            let (archive, whole) = IndexedArchive::index(file, job).map_err(unreadable)?;
            job.check_canceled()?;
            let blobs = Blobs::Archive(archive);
            if let Some(images) = self.import_images(&blobs, path, name.as_deref(), job)? {
                return Ok(images);
            }
            if !whole {
                return Err(StoreError::unusable(path.to_string_lossy(), "it is truncated: the end of the archive is missing"));
            }
            let Blobs::Archive(archive) = blobs else { return Ok(Vec::new()) };
            let name = name.ok_or_else(|| {
                let message = "it is a root file system, which has no name of its own: give it one with --name";
                StoreError::unusable(path.to_string_lossy(), message)
            })?;
            self.import_root(staged, &archive, &given, name, job).map(|stored| vec![stored])
        })
    }

    /// The archive, decompressed if necessary, and the path of the given file. The content of a pipe is copied first, because
    /// it is read more than once.
    fn plain(
        &self,
        path: &Path,
        staged: &Staged,
        job: &BlockingJob,
    ) -> Result<(File, PathBuf), StoreError> {
        let copy = |reader: &mut dyn Read, name: &str| {
            let copied = staged.directory().join(name);
            written(reader, path, &copied, job).map(|file| (file, copied))
        };
        let mut opened = File::open(path).at("open", path)?;
        let (mut file, given) = match opened.metadata().at("open", path)?.is_file() {
            true => (opened, path.to_owned()),
            false => copy(&mut Bounded::new(&mut opened, self.limits.stream()), PIPED)?,
        };
        file.seek(SeekFrom::Start(0)).at("read", path)?;
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start).at("read", path)?;
        file.seek(SeekFrom::Start(0)).at("read", path)?;
        if Compression::of(&start) == Compression::Plain {
            return Ok((file, given));
        }
        job.report(format!("decompressing {}", path.display()));
        let mut reader = Decompressed::new(file, self.limits.stream()).at("read", path)?;
        let (plain, _) = copy(&mut reader, ARCHIVE)?;
        Ok((plain, given))
    }

    fn import_images(
        &self,
        blobs: &Blobs,
        path: &Path,
        name: Option<&str>,
        job: &BlockingJob,
    ) -> Result<Option<Vec<Stored>>, StoreError> {
        let Some(found) = layout::images(blobs, &self.limits)? else { return Ok(None) };
        let unusable = |message: &str| StoreError::unusable(path.to_string_lossy(), message);
        if found.is_empty() {
            return Err(unusable("it contains no image"));
        }
        if name.is_some() && found.len() > 1 {
            return Err(unusable("it contains several images, and --name can name only one"));
        }
        let mut images = Vec::new();
        for image in found {
            let names = match name {
                Some(name) => vec![name.to_owned()],
                None => image
                    .names
                    .iter()
                    .map(|name| names::normalize(name))
                    .collect::<Result<_, _>>()?,
            };
            if names.is_empty() {
                return Err(unusable("its image has no name: give it one with --name"));
            }
            images.push(self.build(None, blobs, &image.parts, &names, job)?);
        }
        Ok(Some(images))
    }

    /// Imports a root file system. It has no configuration, so its digest is that of the given file.
    fn import_root(
        &self,
        staged: &Staged,
        archive: &IndexedArchive,
        given: &Path,
        name: String,
        job: &BlockingJob,
    ) -> Result<Stored, StoreError> {
        job.report("unpacking a root file system");
        let file = File::open(given).at("open", given)?;
        let (digest, _): (Digest, File) = Hashing::new(file).finish().at("read", given)?;
        if let Some(stored) = self.name_now(&digest, std::slice::from_ref(&name))? {
            return Ok(stored);
        }
        let root = staged.open()?;
        let mut unpacker = Unpacker::new(&root, self.limits, job);
        unpacker.layer(ROOT_FILE_SYSTEM, archive.whole())?;
        let description = unpacker.make_mountpoints(ROOT_FILE_SYSTEM, Description::default())?;
        let image = Stored::new(digest.as_str(), unpacker.finish()?, description);
        self.commit_now(staged, &digest, &image, &[name], job)
    }
}

/// A new file with everything that a reader of `path` returns.
fn written(
    reader: &mut dyn Read,
    path: &Path,
    file: &Path,
    job: &BlockingJob,
) -> Result<File, StoreError> {
    let options = File::options().create_new(true).read(true).write(true).open(file);
    let mut written = options.at("make", file)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        job.check_canceled()?;
        let read = reader.read(&mut buffer);
        match read.map_err(|error| StoreError::unusable(path.to_string_lossy(), error))? {
            0 => return Ok(written),
            read => written.write_all(&buffer[..read]).at("write", file)?,
        }
    }
}
