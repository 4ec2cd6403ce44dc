# The server in an image, for a machine on which you don't want to install anything else. It creates its sandboxes
# with the Docker engine whose socket or address you give it. docs/hosts.md says how to run the image, and what
# somebody with access to that socket can do.
#
#   docker build --tag isolator-server .
#
# `make container` does the same with the release binary of this machine, so nothing is compiled in the image.
# You can use other base images. The C library of the second must not be older than that of the first.
ARG BUILD_IMAGE=rust:1-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /source
COPY . .
# `make container` sends a binary instead of the source.
RUN if [ -x isolator ]; then cp isolator /isolator; \
    else cargo build --release --locked --bin isolator && cp target/release/isolator /isolator; fi

FROM ${RUNTIME_IMAGE}
# The server runs as its own user. In the home directory it records which sandboxes belong to it.
RUN groupadd --gid 1000 isolator \
    && useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin isolator \
    && install --directory --owner=isolator --group=isolator \
        /home/isolator/.local /home/isolator/.local/state
COPY --from=build /isolator /usr/local/bin/isolator
RUN isolator man /usr/local/share/man/man1
USER isolator
ENV HOME=/home/isolator
WORKDIR /home/isolator
ENTRYPOINT ["isolator"]
CMD ["serve"]
