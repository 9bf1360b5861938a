# Prometheus from Debian's package, for the compose file.
FROM debian:bookworm-slim
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/* && install -d -o 10001 -g 10001 /data
USER 10001:10001
VOLUME /data
EXPOSE 9090
ENTRYPOINT ["prometheus", "--config.file=/etc/tessera/prometheus.yml", "--storage.tsdb.path=/data"]
