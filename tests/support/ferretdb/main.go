// A server for tests that speaks MongoDB's protocol: FerretDB with its SQLite backend.
//
// FerretDB 1.x reads a document, changes it and writes it back without a lock, so two updates on
// one condition can both succeed. MongoDB never does that. Here a door in front of FerretDB lets
// one command in at a time, across all connections, which makes each of them atomic. With --bare
// there is no door: that is what a deployment looks like which does not keep its promises.
//
// FerretDB also keeps a connection to SQLite for each update of a command until its end, and has a
// hundred: a longer batch waits for itself for ever. So drivers are told to send shorter ones.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

const (
	longest = 64 << 20
	batch   = 50
)

var limit = []byte("\x10maxWriteBatchSize\x00")

func main() {
	bare := len(os.Args) == 4 && os.Args[3] == "--bare"
	if len(os.Args) != 3 && !bare {
		fail("usage: server 127.0.0.1:PORT DIRECTORY [--bare]")
	}
	address, directory := os.Args[1], os.Args[2]
	listener := ferretdb.ListenerConfig{TCP: address}
	if !bare {
		listener = ferretdb.ListenerConfig{Unix: directory + "/socket"}
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  listener,
		Handler:   "sqlite",
		SQLiteURL: "file:" + directory + "/",
	})
	if err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !bare {
		go door(address, directory+"/socket")
	}
	if err := server.Run(ctx); err != nil {
		fail(err)
	}
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(1)
}

func door(address, socket string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fail(err)
	}
	var one sync.Mutex
	for {
		client, err := listener.Accept()
		if err != nil {
			fail(err)
		}
		go pass(client, socket, &one)
	}
}

// pass carries commands and answers of one connection, a command and its answer at a time.
func pass(client net.Conn, socket string, one *sync.Mutex) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	for {
		command, err := message(client)
		if err != nil {
			return
		}
		answer, err := ask(server, command, one)
		if err != nil {
			return
		}
		if at := bytes.Index(answer, limit); at >= 0 && at+len(limit)+4 <= len(answer) {
			binary.LittleEndian.PutUint32(answer[at+len(limit):], batch)
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
	}
}

func ask(server net.Conn, command []byte, one *sync.Mutex) ([]byte, error) {
	one.Lock()
	defer one.Unlock()
	if _, err := server.Write(command); err != nil {
		return nil, err
	}
	return message(server)
}

func message(from net.Conn) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head)
	if size < 16 || size > longest {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	whole := make([]byte, size)
	copy(whole, head)
	_, err := io.ReadFull(from, whole[4:])
	return whole, err
}
