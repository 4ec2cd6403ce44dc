# The server itself in an image, for a machine where nothing else shall be installed. It makes its sandboxes
# with the Docker engine whose socket or address it is given. README.md says how it is run, and what whoever
# has that socket can do.
#
#   docker build --tag isolator .
#
# Both base images may be others, as long as the C library of the second is not older than the first's.
ARG BUILD_IMAGE=rust:1-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --bin isolator && cp target/release/isolator /isolator

FROM ${RUNTIME_IMAGE}
# A user of its own, with a home: the server notes there which sandboxes are its own.
RUN groupadd --gid 1000 isolator \
    && useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin isolator \
    && install --directory --owner=isolator --group=isolator \
        /home/isolator/.local /home/isolator/.local/state
COPY --from=build /isolator /usr/local/bin/isolator
USER isolator
ENV HOME=/home/isolator
WORKDIR /home/isolator
ENTRYPOINT ["isolator"]
CMD ["serve"]
