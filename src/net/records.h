/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel of records (wire/record.h): every byte behind HELLO and WELCOME is covered by a
 * checksum, and none is given to the connection's user before its record has been checked.
 */
#ifndef WH_NET_RECORDS_H
#define WH_NET_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/channel.h"

/* Start records on a connected socket, which the caller keeps and closes. `first`: the checksum of
 * HELLO and WELCOME. `most`: bytes of a record, WH_RECORD_..._MAX. NULL: no memory.
 *
 * wh_channel_receive() fails with EBADMSG once it has found damage, and wh_channel_text() names the
 * record. Like sendmsg(), wh_channel_send() may be given memory that others are writing to: the
 * checksum is that of a copy. Unlike sendmsg(), it must be given memory that is mapped. */
struct wh_channel *wh_records_new(int fd, uint32_t first, uint32_t most, bool owner);

#endif
