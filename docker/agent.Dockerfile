# The agent. The build context is the folder of ./x packages. Target `agent` is for GPU nodes, where
# NVIDIA's container runtime adds the driver; target `simulated` has simulated GPUs instead.
FROM debian:bookworm-slim AS files
COPY *.deb /packages/
COPY docker/rootfs docker/health /
RUN /rootfs /image libc6 libgcc-s1 bash libtinfo6 dash coreutils libacl1 libattr1 libgmp10 libselinux1 libpcre2-8-0 \
 && for package in tessera-agent tessera-stand-in; do dpkg-deb -x /packages/${package}_*.deb /$package || exit 1; done \
 && cp -a /tessera-agent/usr/lib/tessera /image/usr/lib/ && cp -a /tessera-agent/usr/bin/. /image/usr/bin/ \
 && cp /health /image/usr/bin/tessera-health \
 && install -d -o 10001 -g 10001 -m 700 /image/var/lib/tessera-agent \
 && install -d -o 10001 -g 10001 /simulated/var/lib/silicon /simulated/usr/lib/tessera \
 && cp -a /tessera-stand-in/usr/lib/tessera/stand-in /simulated/usr/lib/tessera/

FROM scratch AS agent
ARG VERSION
LABEL org.opencontainers.image.title="tessera-agent" \
      org.opencontainers.image.description="Many jobs on each NVIDIA GPU: the agent of a GPU node" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=files /image /
ENV PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 \
    TESSERA_AGENT_DATA=/var/lib/tessera-agent TESSERA_AGENT_HTTP=0.0.0.0:9401 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_MIG_CONFIG_DEVICES=all
USER 10001:10001
WORKDIR /var/lib/tessera-agent
VOLUME /var/lib/tessera-agent
EXPOSE 9401/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=3s --timeout=6s --start-period=60s --retries=5 CMD ["tessera-health", "9401", "/healthz"]
ENTRYPOINT ["tessera-agent"]

FROM agent AS simulated
COPY --from=files /simulated /
ENV TESSERA_AGENT_NVML=/usr/lib/tessera/stand-in/libnvidia-ml.so.1 \
    TESSERA_AGENT_MPS_CONTROL=/usr/lib/tessera/stand-in/nvidia-cuda-mps-control \
    TESSERA_SIM_NODE=/var/lib/silicon TESSERA_SIM_GPUS=a100-40gb
VOLUME /var/lib/silicon
