module github.com/nova-stream/nova/services

go 1.26.7

require (
	github.com/nova-stream/nova/libs v0.0.0
	github.com/nova-stream/nova/proto v0.0.0
)

replace github.com/nova-stream/nova/libs => ../libs

replace github.com/nova-stream/nova/proto => ../proto
