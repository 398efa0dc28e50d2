"""The server process: command line, ports, probes, start and drain."""
