# The controller, with the command of users. The build context is the folder of ./x packages.
FROM debian:bookworm-slim AS files
COPY *.deb /packages/
COPY docker/rootfs docker/health /
RUN /rootfs /image libc6 libgcc-s1 bash libtinfo6 dash coreutils libacl1 libattr1 libgmp10 libselinux1 libpcre2-8-0 \
 && for package in tessera tessera-controller; do dpkg-deb -x /packages/${package}_*.deb /unpacked || exit 1; done \
 && cp -a /unpacked/usr/bin/. /image/usr/bin/ && cp /health /image/usr/bin/tessera-health \
 && install -d -o 10001 -g 10001 -m 700 /image/var/lib/tessera && install -d -o 10001 -g 10001 /image/run/tessera

FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="tessera-controller" \
      org.opencontainers.image.description="Many jobs on each NVIDIA GPU: the controller" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=files /image /
ENV PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 \
    TESSERA_DATA=/var/lib/tessera TESSERA_SOCKET=/run/tessera/api.sock TESSERA_HTTP=0.0.0.0:7070 TESSERA_QUIC=0.0.0.0:7071 TESSERA_INSECURE_HTTP=true
USER 10001:10001
WORKDIR /var/lib/tessera
VOLUME /var/lib/tessera
EXPOSE 7070/tcp 7071/udp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=3s --timeout=6s --start-period=60s --retries=5 CMD ["tessera-health", "7070", "/readyz"]
ENTRYPOINT ["tessera-controller"]
