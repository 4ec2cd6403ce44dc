//! Images from files: those that Docker saves, OCI layouts and plain root file systems.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::blobs::{Blobs, Tape};
use super::compression::{Compression, Decompressed};
use super::description::Description;
use super::digest::{Digest, Hashing};
use super::error::{Doing, StoreError, is_full};
use super::layout;
use super::stage::Staged;
use super::steps::{Steps, work};
use super::stored::Stored;
use super::unpack::Unpacker;
use super::{Store, names};
use crate::engine::Progress;

/// A compressed archive, unpacked beside the image.
const ARCHIVE: &str = "archive";

/// Read at once, in bytes.
const BUFFER: usize = 128 * 1024;

impl Store {
    /// Takes images from a file or a directory, which may be
    ///
    /// - what `docker save` writes,
    /// - an OCI image layout, as a directory or as a tar archive,
    /// - a tar archive of a root file system, which has no name of its own and needs `name`.
    ///
    /// An archive may be compressed with gzip or zstd. A `name` replaces the names that the images bring.
    /// Of an image for several kinds of machines, the one for this machine is taken.
    ///
    /// # Errors
    ///
    /// All of [`StoreError`] but [`StoreError::InUse`] and [`StoreError::Registry`]. Nothing is left of an
    /// image then, and images before it in the same archive stay.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Vec<Stored>, StoreError> {
        let name = name.map(names::normalize).transpose()?;
        let (store, path) = (self.clone(), path.to_owned());
        work(progress, move |steps| store.import_now(&path, name, steps)).await
    }

    fn import_now(
        &self,
        path: &Path,
        name: Option<String>,
        steps: &Steps,
    ) -> Result<Vec<Stored>, StoreError> {
        steps.say(format!("reading {}", path.display()));
        if fs::metadata(path).at("open", path)?.is_dir() {
            let blobs = Blobs::Directory(path.to_owned());
            let images = self.import_images(&blobs, path, name.as_deref(), steps)?;
            return images.ok_or_else(|| {
                StoreError::unusable(path.to_string_lossy(), "it is no OCI image layout")
            });
        }
        self.stage_now()?.finish(|staged| {
            let (file, given) = self.plain(path, staged, steps)?;
            let unreadable = |error: io::Error| match error {
                error if is_full(&error) => {
                    StoreError::Io { what: "can't read it".into(), source: error }
                }
                error => StoreError::unusable(path.to_string_lossy(), error),
            };
            let (tape, whole) = Tape::index(file, steps).map_err(unreadable)?;
            steps.go_on()?;
            let blobs = Blobs::Archive(tape);
            if let Some(images) = self.import_images(&blobs, path, name.as_deref(), steps)? {
                return Ok(images);
            }
            if !whole {
                return Err(StoreError::unusable(path.to_string_lossy(), "its end is missing"));
            }
            let Blobs::Archive(tape) = blobs else { return Ok(Vec::new()) };
            let name = name.ok_or_else(|| {
                let message = "it is a root file system, which has no name: give it one";
                StoreError::unusable(path.to_string_lossy(), message)
            })?;
            self.import_root(staged, &tape, &given, name, steps).map(|stored| vec![stored])
        })
    }

    /// The archive when it is not compressed, and the path to it as it was given.
    fn plain(
        &self,
        path: &Path,
        staged: &Staged,
        steps: &Steps,
    ) -> Result<(File, PathBuf), StoreError> {
        let mut file = File::open(path).at("open", path)?;
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start).at("read", path)?;
        file.seek(SeekFrom::Start(0)).at("read", path)?;
        if Compression::of(&start) == Compression::Plain {
            return Ok((file, path.to_owned()));
        }
        steps.say(format!("decompressing {}", path.display()));
        let archive = staged.directory().join(ARCHIVE);
        let options = File::options().create_new(true).read(true).write(true).open(&archive);
        let mut plain = options.at("make", &archive)?;
        let mut reader = Decompressed::new(file, self.limits.stream()).at("read", path)?;
        let mut buffer = vec![0; BUFFER];
        loop {
            steps.go_on()?;
            let read = reader.read(&mut buffer);
            match read.map_err(|error| StoreError::unusable(path.to_string_lossy(), error))? {
                0 => return Ok((plain, path.to_owned())),
                read => plain.write_all(&buffer[..read]).at("write", &archive)?,
            }
        }
    }

    fn import_images(
        &self,
        blobs: &Blobs,
        path: &Path,
        name: Option<&str>,
        steps: &Steps,
    ) -> Result<Option<Vec<Stored>>, StoreError> {
        let Some(found) = layout::images(blobs, &self.limits)? else { return Ok(None) };
        let unusable = |message: &str| StoreError::unusable(path.to_string_lossy(), message);
        if found.is_empty() {
            return Err(unusable("there is no image in it"));
        }
        if name.is_some() && found.len() > 1 {
            return Err(unusable("there are several images in it, which can't have one name"));
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
                return Err(unusable("its image has no name: give it one"));
            }
            images.push(self.build(None, blobs, &image.parts, &names, steps)?);
        }
        Ok(Some(images))
    }

    /// A root file system has no configuration: its digest is that of the file as it was given.
    fn import_root(
        &self,
        staged: &Staged,
        tape: &Tape,
        given: &Path,
        name: String,
        steps: &Steps,
    ) -> Result<Stored, StoreError> {
        steps.say("unpacking a root file system");
        let file = File::open(given).at("open", given)?;
        let (digest, _): (Digest, File) = Hashing::new(file).finish().at("read", given)?;
        if let Some(stored) = self.name_now(&digest, std::slice::from_ref(&name))? {
            return Ok(stored);
        }
        let root = staged.open()?;
        let mut unpacker = Unpacker::new(&root, self.limits, steps);
        unpacker.layer("the root file system", tape.whole())?;
        let image = Stored::new(digest.as_str(), unpacker.finish()?, Description::default());
        self.commit_now(staged, &digest, &image, &[name], steps)
    }
}
