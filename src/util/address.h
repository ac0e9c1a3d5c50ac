/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses: as text, and as what limits per client count by. */
#ifndef WH_UTIL_ADDRESS_H
#define WH_UTIL_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Write the address as "127.0.0.1:40123" or "[::1]:7000", cut to `size`; "?" for any other family.
 */
void wh_address_format(char *out, size_t size, const struct sockaddr_storage *address);

/* Is it an address of this host alone: 127.0.0.0/8, ::1, or the former mapped into IPv6? */
bool wh_address_is_loopback(const struct sockaddr_storage *address);

/* The prefix that one client controls: the whole IPv4 address (also if it is mapped into IPv6), or
 * the first 64 bits of an IPv6 address. UINT64_MAX for any other family. Limits per client compare
 * these. */
uint64_t wh_address_prefix(const struct sockaddr_storage *address);

/* Networks are "10.0.0.0/8,192.168.1.7,fd00::/8": addresses, and how many of their bits count. */
bool wh_networks_are_valid(const char *networks);
/* Is the address in one of them? Of an IPv4 address that is mapped into IPv6, that address counts.
 */
bool wh_networks_have(const char *networks, const struct sockaddr_storage *address);

#endif
