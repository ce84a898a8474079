// A page from the disk may start no worker: its script runs in a hidden frame, for the search.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => {
        const script = inside.document.createElement("script")
        script.onload = () => resolve(inside)
        script.src = url
        inside.document.head.append(script)
      })
    }
    async postMessage(data) {
      ;(await this.ready).dispatchEvent(new MessageEvent("message", { data }))
    }
  }
