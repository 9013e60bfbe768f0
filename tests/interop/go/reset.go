package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
)

// resetOffset: a consumer that runs is told to begin again, and does.
func resetOffset(p *place) {
	topic := p.topic(2)
	p.send(topic, 0, 6)
	got := p.receive(p.group(""), topic, everything)
	got.sorted(6)
	await("the reset is taken", func() bool { return p.reset(topic) == 0 }) // some servers need committed offsets for it
	got.sorted(12)
	p.send(topic, 6, 8)
	await("what is sent later", func() bool { return distinct(got) == 8 })
}

// reset lets the check's group begin a topic again; the client has no call for it. It returns the answer's code.
func (p *place) reset(topic string) int {
	header := must(json.Marshal(map[string]any{"code": 222, "language": "GO", "version": 317, "opaque": 1, "flag": 0,
		"extFields": map[string]string{"topic": topic, "group": p.group(""), "timestamp": "0", "isForce": "true"}}))
	connection := must(net.Dial("tcp", p.master))
	defer connection.Close()
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	must(connection.Write(append(frame, header...)))
	var length uint32
	check0(binary.Read(connection, binary.BigEndian, &length))
	answer := make([]byte, length)
	must(io.ReadFull(connection, answer))
	var found struct{ Code int }
	check0(json.Unmarshal(answer[4:4+binary.BigEndian.Uint32(answer)&0xffffff], &found))
	return found.Code
}
