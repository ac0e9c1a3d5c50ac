/* SPDX-License-Identifier: Apache-2.0 */
/* What commands have in common that serve until somebody ends them: registry, serve, exporter. */
#ifndef TOOLS_SERVICE_H
#define TOOLS_SERVICE_H

/* Block SIGINT and SIGTERM in this thread and those that it will start, and return a descriptor
 * that is readable once one has come, for service_end(). Or the exit code after a message,
 * negated. */
int service_signals(void);

/* Print where it serves, as a line of the standard output. EXIT_PASS, or the exit code after a
 * message. */
int service_print(const char *address);

/* Tell systemd that it answers now, if systemd started it (Type=notify; protocol: sd_notify(3)).
 * EXIT_PASS, or the exit code after a message. */
int service_ready(const char *address);

/* Tell systemd, if it started it, that it ends. From now on a signal ends the process at once. */
void service_end(int signals);

#endif
