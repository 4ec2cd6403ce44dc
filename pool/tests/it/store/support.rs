//! Builds archives of all kinds, and a store to import them into.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use isolator_pool::engine::store::{Limits, Store, StoreError, Stored};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// The name under which tests import.
pub(crate) const NAME: &str = "test/image";

/// A tar archive in the making. Nothing keeps it from being wrong.
#[derive(Default, Clone)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn header(path: &[u8], kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        let short = &path[..path.len().min(100)];
        header.as_gnu_mut().unwrap().name[..short.len()].copy_from_slice(short);
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(size);
        header
    }

    pub(crate) fn add(mut self, mut header: Header, content: &[u8]) -> Self {
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// The part before an entry that gives it a long path.
    pub(crate) fn long(self, kind: EntryType, content: &[u8]) -> Self {
        let header = Self::header(b"././@LongLink", kind, content.len() as u64);
        self.add(header, content)
    }

    pub(crate) fn pax(self, key: &str, value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        let mut record = format!("{length} {key}=").into_bytes();
        record.extend_from_slice(value);
        record.push(b'\n');
        self.long(EntryType::XHeader, &record)
    }

    fn entry(
        self,
        path: &str,
        kind: EntryType,
        link: &str,
        mode: Option<u32>,
        content: &[u8],
    ) -> Self {
        let with_path = if path.len() > 100 {
            self.long(EntryType::GNULongName, path.as_bytes())
        } else {
            self
        };
        let mut header = Self::header(path.as_bytes(), kind, content.len() as u64);
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        mode.into_iter().for_each(|mode| header.set_mode(mode));
        with_path.add(header, content)
    }

    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.entry(path, EntryType::Regular, "", None, content.as_bytes())
    }

    pub(crate) fn file_with(self, path: &str, mode: u32, content: &[u8]) -> Self {
        self.entry(path, EntryType::Regular, "", Some(mode), content)
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(path, EntryType::Directory, "", Some(mode), b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Symlink, target, None, b"")
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Link, target, None, b"")
    }

    pub(crate) fn special(self, path: &str, kind: EntryType) -> Self {
        self.entry(path, kind, "", None, b"")
    }

    /// The archive with the mark of its end.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// The kind of this machine, as image configurations call it.
pub(crate) fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// The configuration of an image of layers that are not compressed.
pub(crate) fn config(layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
    json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": { "Env": ["PATH=/bin", "A=b"], "Volumes": { "/data": {} } },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    })
}

/// An archive as `docker save` writes it.
pub(crate) fn saved(config: &Value, layers: &[Vec<u8>], names: &[&str]) -> Vec<u8> {
    let config = config.to_string();
    let path = format!("{}.json", sha256(config.as_bytes()));
    let paths: Vec<_> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let manifest = json!([{ "Config": path, "RepoTags": names, "Layers": paths }]).to_string();
    let mut tar = Tar::default().file(&path, &config).file("manifest.json", &manifest);
    for (path, layer) in paths.iter().zip(layers) {
        tar = tar.file_with(path, 0o644, layer);
    }
    tar.end()
}

/// The files of an OCI image layout.
#[derive(Default)]
pub(crate) struct Layout(pub(crate) Vec<(String, Vec<u8>)>);

impl Layout {
    pub(crate) fn blob(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let hex = sha256(&content);
        let size = content.len();
        self.0.push((format!("blobs/sha256/{hex}"), content));
        json!({ "mediaType": kind, "digest": format!("sha256:{hex}"), "size": size })
    }

    /// An image of layers, given with the way they are compressed.
    pub(crate) fn image(&mut self, config: &Value, layers: Vec<Vec<u8>>) -> Value {
        let config =
            self.blob("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
        let layers: Vec<_> = layers
            .into_iter()
            .map(|layer| self.blob("application/vnd.oci.image.layer.v1.tar+gzip", layer))
            .collect();
        self.json(
            MANIFEST,
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers }),
        )
    }

    pub(crate) fn json(&mut self, kind: &str, content: Value) -> Value {
        self.blob(kind, content.to_string().into_bytes())
    }

    /// Finishes it with an index of these manifests.
    pub(crate) fn index(mut self, manifests: Vec<Value>) -> Self {
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        self.0.push(("index.json".into(), index.to_string().into_bytes()));
        self.0.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
        self
    }

    pub(crate) fn tar(&self) -> Vec<u8> {
        let tar = Tar::default().directory("blobs/", 0o755).directory("blobs/sha256/", 0o755);
        self.0.iter().fold(tar, |tar, (path, content)| tar.file_with(path, 0o644, content)).end()
    }

    pub(crate) fn write(&self, directory: &Path) {
        for (path, content) in &self.0 {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A descriptor with an image's name.
pub(crate) fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    descriptor
}

/// A store in a directory, next to a folder that must not be touched.
pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) store: Store,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("victim"), "untouched").unwrap();
        fs::create_dir(directory.path().join("input")).unwrap();
        let store = Store::new(directory.path().join("a/b/store")).with_limits(limits);
        Self { directory, store }
    }

    pub(crate) fn write(&self, archive: &[u8]) -> PathBuf {
        let path = self.directory.path().join("input/archive");
        fs::write(&path, archive).unwrap();
        path
    }

    pub(crate) async fn import(&self, archive: &[u8]) -> Result<Stored, StoreError> {
        let path = self.write(archive);
        let imported = self.store.import(&path, Some(NAME), &|_| {}).await?;
        Ok(imported.into_iter().next().unwrap())
    }

    /// Imports an image of these layers and returns its root.
    pub(crate) async fn layers(&self, layers: &[Vec<u8>]) -> Result<PathBuf, StoreError> {
        let stored = self.import(&saved(&config(layers), layers, &[])).await?;
        Ok(self.root(&stored))
    }

    pub(crate) fn root(&self, stored: &Stored) -> PathBuf {
        self.store.images().join(stored.relative_root())
    }

    pub(crate) fn staging(&self) -> Vec<PathBuf> {
        entries(&self.directory.path().join("a/b/store/staging"))
    }

    /// Nothing is there but images that are whole, and nothing outside was touched.
    pub(crate) fn check(&self, images: usize) {
        assert_eq!(self.store.list().unwrap().len(), images);
        assert_eq!(entries(&self.store.images()).len(), images);
        assert_eq!(self.staging(), Vec::<PathBuf>::new());
        let outside = self.directory.path();
        assert_eq!(fs::read(outside.join("victim")).unwrap(), b"untouched");
        assert_eq!(fs::metadata(outside.join("victim")).unwrap().nlink(), 1);
        let names = |path: &Path| {
            let names = entries(path).into_iter();
            names.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        let found: [Vec<String>; 3] =
            [names(outside), names(&outside.join("a")), names(&outside.join("a/b"))];
        assert_eq!(found, [vec!["a", "input", "victim"], vec!["b"], vec!["store"]]);
        for name in names(&outside.join("a/b/store")) {
            let own = ["images", "lock", "names.json", "staging"];
            assert!(own.contains(&name.as_str()), "{name}");
        }
    }
}

pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
