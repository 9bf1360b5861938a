# PostgreSQL from Debian's package, for the compose file.
FROM debian:bookworm-slim
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
 && apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* && install -d -o postgres -g postgres -m 700 /data
COPY docker/postgres-start /usr/bin/
ENV PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER postgres
VOLUME /data
EXPOSE 5432
STOPSIGNAL SIGINT
HEALTHCHECK --interval=2s --timeout=5s --start-period=60s --retries=5 CMD ["pg_isready", "-q", "-h", "127.0.0.1"]
ENTRYPOINT ["postgres-start"]
